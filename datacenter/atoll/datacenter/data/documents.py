"""Documents as tokens, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]
"""uint8, uint16 or uint32 [n]."""


@dataclass(frozen=True)
class Documents:
    """Documents end to end.

    Attributes:
        tokens: [count], uint8, uint16 or uint32; an array in memory or a map of a file.
        offsets: int64 [documents + 1], rising from 0 to ``count``: document d is ``tokens[offsets[d]:offsets[d + 1]]``.
        vocab: every token is below it.
        name: for errors: "standard library of Python 3.11.7", or a path.
        digest: of tokens and offsets, hex; the same digest is the same data.
    """

    tokens: Tokens
    offsets: NDArray[np.int64]
    vocab: int
    name: str
    digest: str

    def __len__(self) -> int:
        return self.offsets.size - 1


def in_memory(documents: Iterable[Tokens], vocab: int, name: str) -> Documents:
    """Documents gathered from an iterable. Memory: twice their tokens while it runs, once after."""
    parts = list(documents)
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.size for part in parts], out=offsets[1:])
    tokens: Tokens = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    return Documents(tokens, offsets, vocab, name, digest_of(tokens, offsets))


def digest_of(tokens: Tokens, offsets: NDArray[np.int64]) -> str:
    """BLAKE3 of tokens and offsets, 128 bits as hex."""
    state = blake3.blake3(str(tokens.dtype).encode())
    state.update(tokens.view(np.uint8).data)
    state.update(offsets.view(np.uint8).data)
    return state.hexdigest(length=16)
