"""Cut documents into sequences of one length with next-token labels.

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
"""Label that no loss counts; PyTorch's cross entropy ignores it by default."""
PADDING = 0
"""Token where there is no text. Its label is IGNORED and its document is -1."""
NO_DOCUMENT = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Some sequences.

    Attributes:
        inputs: int64 [b, s] tokens; float32 [b, ...] for data that is not text.
        labels: int64 [b, s]; the next token, or IGNORED. [b] for data that is not text.
        documents: int64 [b, s]: the document of its row that a token belongs to, from 0; NO_DOCUMENT for padding. None
            for data that is not text.
        positions: int64 [b, s]: position of a token in its document, counted from the start of the row or the document.
            None for data that is not text.
    """

    inputs: NDArray[np.int64] | NDArray[np.float32]
    labels: Ints
    documents: Ints | None = None
    positions: Ints | None = None


class Sequences(Protocol):
    """Provides sequences in any order."""

    @property
    def name(self) -> str:
        """Name for errors."""
        ...

    @property
    def digest(self) -> str:
        """Digest of everything that the rows depend on; equal digests mean equal rows."""
        ...

    def __len__(self) -> int: ...

    def rows(self, indices: Ints) -> Rows:
        """Return the sequences with these indices (int64 [b]), in that order."""
        ...


@dataclass(frozen=True)
class Window:
    """Up to s + 1 consecutive tokens.

    Attributes:
        tokens: [from 1 to s + 1].
        cuts: where further documents start in ``tokens``; rising, above 0 and below the number of tokens.
    """

    tokens: Tokens
    cuts: Ints


_NO_CUTS: Ints = np.empty(0, np.int64)


class Packed:
    """Documents concatenated and cut every ``sequence`` tokens; the last sequence is padded.

    Sequence i has tokens [i s, (i + 1) s) as inputs and the tokens shifted by one as labels, so each token except the
    first is a label exactly once.
    """

    def __init__(self, documents: Documents, sequence: int) -> None:
        self._documents, self._sequence = documents, sequence
        self._count = max(0, -(-(documents.tokens.size - 1) // sequence))

    @property
    def name(self) -> str:
        """Name of the documents."""
        return self._documents.name

    @property
    def digest(self) -> str:
        """Digest of the documents and the way they are cut."""
        return f"{self._documents.digest}/packed/{self._sequence}"

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: Ints) -> Rows:
        """Return the sequences with these indices."""
        return stack((self._window(int(index)) for index in indices), len(indices), self._sequence)

    def _window(self, index: int) -> Window:
        tokens, offsets = self._documents.tokens, self._documents.offsets
        start = index * self._sequence
        stop = min(start + self._sequence + 1, tokens.size)
        first, last = np.searchsorted(offsets, start, side="right"), np.searchsorted(offsets, stop, side="left")
        return Window(self._documents.take(start, stop), offsets[first:last] - start)


class Padded:
    """Every document starts a new sequence; the rest of its last sequence is padding.

    A document of n tokens takes ceil((n - 1) / s) sequences, cut as in ``Packed``. Holds 8 bytes per document.
    """

    def __init__(self, documents: Documents, sequence: int) -> None:
        self._documents, self._sequence = documents, sequence
        lengths = np.diff(documents.offsets)
        self._ends = np.cumsum(np.maximum(0, -(-(lengths - 1) // sequence)))

    @property
    def name(self) -> str:
        """Name of the documents."""
        return self._documents.name

    @property
    def digest(self) -> str:
        """Digest of the documents and the way they are cut."""
        return f"{self._documents.digest}/padded/{self._sequence}"

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def rows(self, indices: Ints) -> Rows:
        """Return the sequences with these indices."""
        return stack((self._window(int(index)) for index in indices), len(indices), self._sequence)

    def _window(self, index: int) -> Window:
        document = int(np.searchsorted(self._ends, index, side="right"))
        part = index - (int(self._ends[document - 1]) if document else 0)
        first, last = self._documents.offsets[document : document + 2]
        start = int(first) + part * self._sequence
        return Window(self._documents.take(start, min(start + self._sequence + 1, int(last))), _NO_CUTS)


def stack(windows: Iterable[Window], count: int, sequence: int) -> Rows:
    """Stack ``count`` windows as rows: inputs, labels, document ids and positions; short windows are padded."""
    shape = (count, sequence)
    inputs, labels = np.full(shape, PADDING, np.int64), np.full(shape, IGNORED, np.int64)
    documents, positions = np.full(shape, NO_DOCUMENT, np.int64), np.zeros(shape, np.int64)
    places = np.arange(sequence)
    for row, window in enumerate(windows):
        used = min(window.tokens.size, sequence)
        inputs[row, :used] = window.tokens[:used]
        labels[row, : window.tokens.size - 1] = window.tokens[1:]
        documents[row, :used] = 0
        positions[row, :used] = places[:used]
        if window.cuts.size:
            labels[row, window.cuts - 1] = IGNORED
            starts = np.concatenate(([0], window.cuts[window.cuts < used]))
            documents[row, :used] = np.repeat(np.arange(starts.size), np.diff(starts, append=used))
            positions[row, :used] -= starts[documents[row, :used]]
    return Rows(inputs, labels, documents, positions)
