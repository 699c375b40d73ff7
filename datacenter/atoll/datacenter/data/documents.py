"""Documents as tokens, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.errors import DataError

Tokens = NDArray[np.unsignedinteger[Any]]
"""uint8, uint16 or uint32 [n]."""
MAX_VOCAB = 1 << 32


@dataclass(frozen=True)
class Documents:
    """Concatenated documents.

    Attributes:
        tokens: [count], uint8, uint16 or uint32; an array in memory or a map of a file.
        offsets: int64 [documents + 1], rising from 0 to ``count``; document d is ``tokens[offsets[d]:offsets[d + 1]]``.
        vocab: every token is below it.
        name: name for errors: "standard library of Python 3.11.7", or a path.
        digest: digest of tokens and offsets, hex; equal digests mean equal data.
    """

    tokens: Tokens
    offsets: NDArray[np.int64]
    vocab: int
    name: str
    digest: str

    def __len__(self) -> int:
        return self.offsets.size - 1

    def take(self, start: int, stop: int) -> Tokens:
        """Return tokens [start, stop).

        Raises:
            DataError: if a token is not in the vocabulary, as in a damaged file.
        """
        tokens = self.tokens[start:stop]
        if tokens.size and int(tokens.max()) >= self.vocab:
            place = int(np.argmax(tokens >= self.vocab))
            raise DataError(
                f"{self.name}: token {start + place} is {tokens[place]}, but the vocabulary has {self.vocab}: "
                "the file is damaged, create it again"
            )
        return tokens


def token_dtype(vocab: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest little-endian dtype that holds every token below ``vocab``."""
    if not 1 <= vocab <= MAX_VOCAB:
        raise DataError(f"a vocabulary of {vocab} tokens: allowed are 1 to {MAX_VOCAB}")
    return np.dtype("u1" if vocab <= 1 << 8 else "<u2" if vocab <= 1 << 16 else "<u4")


def in_memory(documents: Iterable[Tokens], vocab: int, name: str) -> Documents:
    """Collect documents from an iterable, without empty ones. Memory: twice the size of their tokens, then once."""
    parts = [part for part in documents if part.size]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.size for part in parts], out=offsets[1:])
    tokens: Tokens = np.concatenate(parts) if parts else np.empty(0, token_dtype(vocab))
    digest = new_digest(tokens.dtype)
    digest.update(tokens.view(np.uint8).data)
    digest.update(offsets.view(np.uint8).data)
    return Documents(tokens, offsets, vocab, name, digest.hexdigest())


def new_digest(dtype: np.dtype[np.unsignedinteger[Any]]) -> blake3.blake3:
    """Start a digest of documents: BLAKE3 over bytes per token (one byte), tokens, offsets, all little-endian."""
    return blake3.blake3(bytes([dtype.itemsize]))
