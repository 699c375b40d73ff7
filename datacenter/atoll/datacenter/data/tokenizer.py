"""Tokenizers: convert text to tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import blake3
import numpy as np

from atoll.datacenter.data.documents import Tokens, token_dtype
from atoll.datacenter.errors import DataError, MissingExtraError

BYTES = "bytes"


class Tokenizer(Protocol):
    """Converts text to tokens."""

    @property
    def vocab(self) -> int:
        """Every token is below this number."""
        ...

    @property
    def digest(self) -> str:
        """32 bytes in hex; equal digests mean equal tokens."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of UTF-8 text, in the smallest dtype that holds ``vocab``."""
        ...


class ByteTokenizer:
    """Each byte is a token."""

    vocab = 256
    digest = blake3.blake3(BYTES.encode()).hexdigest()

    def encode(self, text: bytes) -> Tokens:
        """Return the bytes themselves, not copied (read-only)."""
        return np.frombuffer(text, np.uint8)


class HuggingFaceTokenizer:
    """A Hugging Face ``tokenizer.json``, read by the ``tokenizers`` library.

    Bytes that are not UTF-8 become U+FFFD. Special tokens are not added: a piece of text need not begin its document.

    Args:
        path: the file.

    Raises:
        MissingExtraError: if the ``tokenizers`` library is not installed.
        DataError: if the file is missing or not a tokenizer.json.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers  # noqa: PLC0415  # an optional extra
        except ModuleNotFoundError as error:
            raise MissingExtraError("tokenizers", "tokenizers", f"the tokenizer {path}") from error
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f'{path}: cannot read a tokenizer ({error}): give a tokenizer.json, or "bytes"') from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises Exception itself
            raise DataError(f"{path} is not a tokenizer.json of the tokenizers library: {error}") from error
        self._ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if not self._ids:
            raise DataError(f"{path} has no tokens")
        self.vocab = max(self._ids.values()) + 1
        self.digest = blake3.blake3(text.encode()).hexdigest()
        self._path, self._dtype = path, token_dtype(self.vocab)

    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of UTF-8 text."""
        found = self._tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)
        return np.asarray(found.ids, self._dtype)

    def id_of(self, token: str) -> int:
        """Return the id of a token by its text.

        Raises:
            DataError: if there is no such token.
        """
        if token not in self._ids:
            raise DataError(f"{self._path} has no token {token!r} among its {len(self._ids)}")
        return self._ids[token]


def open_tokenizer(name: str, folder: Path) -> Tokenizer:
    """Open ``bytes``, or the ``tokenizer.json`` at a path relative to ``folder``."""
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(folder / name)
