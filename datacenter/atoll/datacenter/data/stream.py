"""Text that is tokenised while it streams. Each row of a step comes from its own lane.

Lane r feeds row r of every step: it takes pieces r, r + G, r + 2 G ... of the endless sequence of shuffled epochs (G:
the global batch). A rank reads and tokenises only the lanes of its own rows, and the row of a lane at a step does not
depend on other lanes. A lane's position after some steps is known only by tokenising it. ``bookmarks`` carry the
position over a restart; a lane without one is tokenised again from its beginning, with the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.documents import Tokens, token_dtype
from atoll.datacenter.data.packing import Ints, Rows, Window, stack
from atoll.datacenter.data.permutation import Permutation
from atoll.datacenter.data.text import TextPieces
from atoll.datacenter.data.tokenizer import Tokenizer
from atoll.datacenter.errors import DataError

UNKNOWN = -1
_OFFSET_BITS = 28
_KEPT_BOOKMARKS = 64
"""Bookmarks kept for each lane; more than a loader ever reads ahead."""


@dataclass(frozen=True)
class Encoded:
    """A tokenised piece.

    Attributes:
        tokens: tokens of its documents, concatenated.
        starts: int64; first tokens of the documents, from 0, rising.
    """

    tokens: Tokens
    starts: Ints

    @property
    def teaches(self) -> bool:
        """Whether some document has at least two tokens, so that there is one to predict."""
        return bool((np.diff(self.starts, append=self.tokens.size) > 1).any())


class TextStream:
    """Rows of every step from text files. Memory: one or two pieces of tokens for each lane that is read.

    Args:
        pieces: the text.
        tokenizer: converts text to tokens.
        sequence: tokens of a row.
        global_batch: rows of a step; this is also the number of lanes.
        seed: seed of the order of pieces, which differs in each epoch.
        packing: whether documents share rows; otherwise each starts its own.
    """

    def __init__(
        self, pieces: TextPieces, tokenizer: Tokenizer, sequence: int, global_batch: int, seed: int, *, packing: bool
    ) -> None:
        if pieces.size_bytes < sequence * global_batch:
            raise DataError(
                f"{pieces.files[0].path} and {len(pieces.files) - 1} more: {pieces.size_bytes} bytes of text are too "
                f"few for one global batch of {global_batch} * {sequence} tokens: set batch.global_batch or "
                "batch.sequence lower, or provide more data"
            )
        self.global_batch, self._sequence, self._packing = global_batch, sequence, packing
        self._pieces, self._tokenizer, self._seed = pieces, tokenizer, seed
        self._lanes: dict[int, _Lane] = {}
        self._reading = threading.Lock()

    @property
    def digest(self) -> str:
        """Digest of files, tokenizer, order and size of a step."""
        cut = "packed" if self._packing else "padded"
        text = f"{self._pieces.digest}+{self._tokenizer.digest}"
        return f"{text}/{cut}/{self._sequence}/shuffled/{self._seed}/{self.global_batch}"

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """Return rows of a step."""
        with self._reading:
            pieces = [self._lane(number).row(step) for number in range(start, stop)]
        return stack(pieces, stop - start, self._sequence)

    def epoch(self, step: int) -> int:
        """Return the epoch of the first lane read here whose epoch is known."""
        turns = (lane.bookmarks.get(step, UNKNOWN) >> _OFFSET_BITS for lane in list(self._lanes.values()))
        turn = next((turn for turn in turns if turn >= 0), 0)
        return turn * self.global_batch // len(self._pieces)

    def bookmarks(self, step: int) -> Ints:
        """Int64 [global_batch]: position of each lane before a step; UNKNOWN for lanes that are not read here."""
        found = np.full(self.global_batch, UNKNOWN, np.int64)
        for number, lane in list(self._lanes.items()):
            found[number] = lane.bookmarks.get(step, UNKNOWN)
        return found

    def recall(self, step: int, bookmarks: Ints) -> None:
        """Use bookmarks of a step."""
        with self._reading:
            self._lanes.clear()
            for number in np.flatnonzero(bookmarks != UNKNOWN).tolist():
                self._lane(number).bookmarks[step] = int(bookmarks[number])

    def encoded(self, number: int, turn: int) -> Encoded:
        """Return the piece of a lane at a turn, tokenised."""
        epoch, place = divmod(turn * self.global_batch + number, len(self._pieces))
        index = Permutation(len(self._pieces), self._seed, epoch)(np.asarray([place]))
        parts = [self._tokenizer.encode(text) for text in self._pieces.documents(int(index[0]))]
        ends = np.cumsum([part.size for part in parts], dtype=np.int64)
        tokens = np.concatenate(parts) if parts else np.empty(0, token_dtype(self._tokenizer.vocab))
        return Encoded(tokens, np.unique(np.concatenate(([0], ends[:-1]))) if parts else ends)

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            self._lanes[number] = _Lane(self, number, self._sequence, len(self._pieces), packing=self._packing)
        return self._lanes[number]


class _Lane:
    """A cursor over a lane's pieces, with bookmarks of the last steps."""

    def __init__(self, stream: TextStream, number: int, sequence: int, longest_gap: int, *, packing: bool) -> None:
        self._stream, self._number, self._sequence, self._packing = stream, number, sequence, packing
        self._longest_gap = longest_gap
        self.bookmarks: dict[int, int] = {}
        """Step → turn and offset of the next token, as one number."""
        self._step = 0
        self._turn, self._offset = 0, 0
        self._loaded: dict[int, Encoded] = {}

    def row(self, step: int) -> Window:
        """Return the lane's row at a step."""
        if step != self._step:
            self._go_back(step)
        while self._step < step:
            self._next()
        return self._next()

    def _go_back(self, step: int) -> None:
        """Move to the last known position at or before a step."""
        known = max((place for place in self.bookmarks if place <= step), default=0)
        if known <= self._step < step:
            return
        self._step, bookmark = known, self.bookmarks.get(known, 0)
        self._turn, self._offset = bookmark >> _OFFSET_BITS, bookmark & ((1 << _OFFSET_BITS) - 1)
        self._loaded.clear()

    def _next(self) -> Window:
        self.bookmarks.setdefault(self._step, self._turn << _OFFSET_BITS | self._offset)
        piece = self._packed() if self._packing else self._padded()
        self._step += 1
        self.bookmarks[self._step] = self._turn << _OFFSET_BITS | self._offset
        while len(self.bookmarks) > _KEPT_BOOKMARKS:
            del self.bookmarks[min(self.bookmarks)]
        return piece

    def _packed(self) -> Window:
        """Return ``sequence`` tokens and the one after them, from as many pieces as necessary."""
        parts: list[Tokens] = []
        cuts: list[Ints] = []
        missing, filled = self._sequence + 1, 0
        for turn, offset, piece in self._from_here():
            part = piece.tokens[offset : offset + missing]
            inside = piece.starts[(piece.starts >= offset) & (piece.starts < offset + part.size)]
            cuts.append(inside - offset + filled)
            parts.append(part)
            missing, filled = missing - part.size, filled + part.size
            if not missing:
                self._move(turn, offset + part.size - 1)
                break
        joined = np.concatenate(cuts)
        return Window(np.concatenate(parts), joined[joined > 0])

    def _padded(self) -> Window:
        """Return up to ``sequence`` + 1 tokens of one document; a document of one token has nothing to predict."""
        for turn, offset, piece in self._from_here():
            for start, stop, following in _document_rows(piece, offset, self._sequence):
                if stop - start > 1:
                    self._move(turn, following)
                    return Window(piece.tokens[start:stop], _NO_CUTS)
        raise AssertionError("pieces do not end")

    def _from_here(self) -> Iterator[tuple[int, int, Encoded]]:
        """Yield turn, offset and piece, from the cursor on, without end.

        Raises:
            DataError: if no piece has anything to predict.
        """
        turn, offset, empty = self._turn, self._offset, 0
        while True:
            if turn not in self._loaded:
                self._loaded[turn] = self._stream.encoded(self._number, turn)
            piece = self._loaded[turn]
            empty = 0 if piece.teaches else empty + 1
            if empty > self._longest_gap:
                raise DataError(
                    f"no document of the {self._longest_gap} pieces of text has two tokens: provide other text"
                )
            yield turn, offset, piece
            turn, offset = turn + 1, 0

    def _move(self, turn: int, offset: int) -> None:
        self._turn, self._offset = turn, offset
        for passed in [loaded for loaded in self._loaded if loaded < turn]:
            del self._loaded[passed]


def _document_rows(piece: Encoded, offset: int, sequence: int) -> Iterator[tuple[int, int, int]]:
    """Yield start and end of each row from an offset on, with a token to look ahead, and the start of the next row."""
    while offset < piece.tokens.size:
        after = int(np.searchsorted(piece.starts, offset, side="right"))
        end = int(piece.starts[after]) if after < piece.starts.size else piece.tokens.size
        following = offset + sequence if end - offset - 1 > sequence else end
        yield offset, min(end, offset + sequence + 1), following
        offset = following


_NO_CUTS: NDArray[np.int64] = np.empty(0, np.int64)
