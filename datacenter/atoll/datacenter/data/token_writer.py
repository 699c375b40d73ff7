"""Write a token file from a stream of documents: the whole file or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from atoll.datacenter.data.documents import Tokens, new_digest, token_dtype
from atoll.datacenter.data.token_file import HEADER_BYTES, Header
from atoll.datacenter.durable import sync_folder
from atoll.datacenter.errors import DataError

_BUFFER_BYTES = 1 << 20


class TokenWriter:
    """A context manager that writes beside its destination and replaces it if there was no error.

    Memory: two buffers of 1 MiB and the tokens passed in; offsets of documents are in a temporary file.

    Args:
        path: destination; replaced when everything is written and on disk.
        vocab: every token is below it.
        tokenizer: digest of the tokenizer, 32 bytes in hex.
    """

    def __init__(self, path: Path, vocab: int, tokenizer: str) -> None:
        self.path, self._vocab, self._tokenizer = path, vocab, bytes.fromhex(tokenizer)
        self._dtype = token_dtype(vocab)
        self._digest = new_digest(self._dtype)
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._in_document = False
        self.tokens = 0
        """Tokens written so far."""
        self.documents = 0
        """Documents ended so far."""

    def __enter__(self) -> TokenWriter:
        with _as_data_errors(self.path):
            self._file: IO[bytes] = self._partial.open("wb", buffering=_BUFFER_BYTES)
            self._offsets = tempfile.TemporaryFile(dir=self.path.parent, buffering=_BUFFER_BYTES)
        self._file.write(bytes(HEADER_BYTES))
        self._add_offset()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with _as_data_errors(self.path):
                with self._file, self._offsets:
                    if kind is None:
                        self._finish()
                if kind is None:
                    self._partial.replace(self.path)
                    sync_folder(self.path.parent)
        finally:
            self._partial.unlink(missing_ok=True)

    def add(self, tokens: Tokens) -> None:
        """Append tokens to the current document, or begin one.

        Raises:
            DataError: if a token is not in the vocabulary, or the disk is full.
        """
        if tokens.size and int(tokens.max()) >= self._vocab:
            raise DataError(f"{self.path}: token {tokens.max()} is not in the vocabulary of {self._vocab}")
        written = np.ascontiguousarray(tokens, self._dtype).view(np.uint8).data
        with _as_data_errors(self.path):
            self._file.write(written)
        self._digest.update(written)
        self.tokens += tokens.size
        self._in_document |= tokens.size > 0

    def end_document(self, end: Tokens | None = None) -> None:
        """End the document, after optional last tokens; a document without tokens is dropped."""
        if self._in_document:
            if end is not None:
                self.add(end)
            self._in_document = False
            self.documents += 1
            with _as_data_errors(self.path):
                self._add_offset()

    def _add_offset(self) -> None:
        self._offsets.write(self.tokens.to_bytes(8, "little"))

    def _finish(self) -> None:
        self.end_document()
        self._file.write(bytes(-self.tokens * self._dtype.itemsize % 8))
        self._offsets.seek(0)
        while block := self._offsets.read(_BUFFER_BYTES):
            self._digest.update(block)
            self._file.write(block)
        header = Header(self._vocab, self.tokens, self.documents, self._digest.digest(), self._tokenizer)
        self._file.seek(0)
        self._file.write(header.pack())
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def _as_data_errors(path: Path) -> Iterator[None]:
    """Convert an ``OSError`` to a ``DataError`` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
