"""From documents to sequences of one length with next-token labels.

A label never crosses from one document to the next: the last token of a document has the label IGNORED.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.documents import Documents, Tokens

IGNORED = -100
"""Label that no loss counts; what PyTorch's cross entropy ignores by default."""
PADDING = 0
"""Token where there is no text. Its label is IGNORED and its document is -1."""
NO_DOCUMENT = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Some sequences.

    Attributes:
        inputs: int64 [b, s] tokens; float32 [b, ...] for what is not text.
        labels: int64 [b, s]; the next token, or IGNORED. For what is not text: [b].
        documents: int64 [b, s]: which document of its row a token belongs to, from 0; NO_DOCUMENT for padding. None
            for what is not text, as ``positions`` is.
        positions: int64 [b, s]: place of a token in its document, counted from where the row (or the document) starts.
    """

    inputs: NDArray[np.int64] | NDArray[np.float32]
    labels: Ints
    documents: Ints | None = None
    positions: Ints | None = None


class Sequences(Protocol):
    """Something with sequences that can be taken in any order."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    @property
    def digest(self) -> str:
        """Of everything that the rows depend on; the same digest is the same rows."""
        ...

    def __len__(self) -> int: ...

    def rows(self, indices: Ints) -> Rows:
        """The sequences with these indices (int64 [b]), in that order."""
        ...


@dataclass(frozen=True)
class Piece:
    """Up to s + 1 tokens in a row.

    Attributes:
        tokens: [from 1 to s + 1].
        cuts: where in ``tokens`` further documents start; rising, above 0 and below the number of tokens.
    """

    tokens: Tokens
    cuts: Ints


_NO_CUTS: Ints = np.empty(0, np.int64)


class Packed:
    """Documents end to end, cut every ``sequence`` tokens; the last sequence is filled up with padding.

    Sequence i has tokens [i s, (i + 1) s) as inputs and those one further as labels, so that each token but the first
    is looked at as a label exactly once.
    """

    def __init__(self, documents: Documents, sequence: int) -> None:
        self._documents, self._sequence = documents, sequence
        self._count = max(0, -(-(documents.tokens.size - 1) // sequence))

    @property
    def name(self) -> str:
        """Of the documents."""
        return self._documents.name

    @property
    def digest(self) -> str:
        """Of the documents, and how they are cut."""
        return f"{self._documents.digest}/packed/{self._sequence}"

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: Ints) -> Rows:
        """The sequences with these indices."""
        return stack((self._piece(int(index)) for index in indices), len(indices), self._sequence)

    def _piece(self, index: int) -> Piece:
        tokens, offsets = self._documents.tokens, self._documents.offsets
        start = index * self._sequence
        stop = min(start + self._sequence + 1, tokens.size)
        first, last = np.searchsorted(offsets, start, side="right"), np.searchsorted(offsets, stop, side="left")
        return Piece(self._documents.take(start, stop), offsets[first:last] - start)


class Padded:
    """Every document starts a sequence of its own; what is left of its last one is padding.

    A document of n tokens takes ceil((n - 1) / s) sequences, cut as in ``Packed``. Holds 8 bytes per document.
    """

    def __init__(self, documents: Documents, sequence: int) -> None:
        self._documents, self._sequence = documents, sequence
        lengths = np.diff(documents.offsets)
        self._ends = np.cumsum(np.maximum(0, -(-(lengths - 1) // sequence)))

    @property
    def name(self) -> str:
        """Of the documents."""
        return self._documents.name

    @property
    def digest(self) -> str:
        """Of the documents, and how they are cut."""
        return f"{self._documents.digest}/padded/{self._sequence}"

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def rows(self, indices: Ints) -> Rows:
        """The sequences with these indices."""
        return stack((self._piece(int(index)) for index in indices), len(indices), self._sequence)

    def _piece(self, index: int) -> Piece:
        document = int(np.searchsorted(self._ends, index, side="right"))
        part = index - (int(self._ends[document - 1]) if document else 0)
        first, last = self._documents.offsets[document : document + 2]
        start = int(first) + part * self._sequence
        return Piece(self._documents.take(start, min(start + self._sequence + 1, int(last))), _NO_CUTS)


def stack(pieces: Iterable[Piece], count: int, sequence: int) -> Rows:
    """``count`` pieces as rows: inputs, labels, document ids and positions; short ones are padded."""
    shape = (count, sequence)
    inputs, labels = np.full(shape, PADDING, np.int64), np.full(shape, IGNORED, np.int64)
    documents, positions = np.full(shape, NO_DOCUMENT, np.int64), np.zeros(shape, np.int64)
    places = np.arange(sequence)
    for row, piece in enumerate(pieces):
        used = min(piece.tokens.size, sequence)
        inputs[row, :used] = piece.tokens[:used]
        labels[row, : piece.tokens.size - 1] = piece.tokens[1:]
        documents[row, :used] = 0
        positions[row, :used] = places[:used]
        if piece.cuts.size:
            labels[row, piece.cuts - 1] = IGNORED
            starts = np.concatenate(([0], piece.cuts[piece.cuts < used]))
            documents[row, :used] = np.repeat(np.arange(starts.size), np.diff(starts, append=used))
            positions[row, :used] -= starts[documents[row, :used]]
    return Rows(inputs, labels, documents, positions)
