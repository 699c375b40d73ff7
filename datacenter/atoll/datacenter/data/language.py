"""Checks of user-supplied sequences for a language model whose vocabulary and sequence length are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.packing import IGNORED, Ints, Rows, Sequences
from atoll.datacenter.errors import DataError


def for_model(sequences: Sequences, sequence: int, vocab: int | None) -> Sequences:
    """Return the sequences, checked if the model's vocabulary is known.

    Raises:
        DataError: see ``LanguageSequences``.
    """
    return sequences if vocab is None else LanguageSequences(sequences, sequence, vocab)


class LanguageSequences:
    """Sequences whose tokens and labels are checked when they are read, before they reach the model.

    On a GPU a token beyond the vocabulary ends the process without naming the token.

    Args:
        sequences: what is read.
        sequence: tokens of a sequence, ``batch.sequence``.
        vocab: the model's vocabulary.

    Raises:
        DataError: if the first sequence is not of ``sequence`` tokens and as many labels.
    """

    def __init__(self, sequences: Sequences, sequence: int, vocab: int) -> None:
        self._sequences, self._vocab = sequences, vocab
        self.name, self.digest = sequences.name, sequences.digest
        first = self.rows(np.zeros(1, np.int64))
        if first.inputs.dtype.kind != "i" or first.inputs.shape[1:] != (sequence,):
            raise DataError(
                f"{self.name}[0] has an input of {first.inputs.dtype} and shape {first.inputs.shape[1:]}: a language "
                f"model with batch.sequence = {sequence} reads {sequence} token ids"
            )
        if first.labels.shape != first.inputs.shape:
            raise DataError(
                f"{self.name}[0] has {sequence} tokens and labels of shape {first.labels.shape[1:]}: give each token "
                f"one label, the next token, or {IGNORED} where there is none"
            )

    def __len__(self) -> int:
        return len(self._sequences)

    def rows(self, indices: Ints) -> Rows:
        """Return the sequences with these indices (int64 [b]), in that order.

        Raises:
            DataError: if a token or a label is not in the vocabulary; names it and its sequence.
        """
        rows = self._sequences.rows(indices)
        self._check("token", rows.inputs, (rows.inputs < 0) | (rows.inputs >= self._vocab), indices)
        counted = rows.labels != IGNORED
        self._check("label", rows.labels, counted & ((rows.labels < 0) | (rows.labels >= self._vocab)), indices)
        return rows

    def _check(self, what: str, values: NDArray[np.generic], wrong: NDArray[np.bool_], indices: Ints) -> None:
        if not wrong.any():
            return
        place = tuple(np.argwhere(wrong)[0])
        raise DataError(
            f"{self.name}[{indices[place[0]]}] has the {what} {values[place]}, but the model's vocabulary has "
            f"{self._vocab}: use the model's own tokenizer, or set model.vocab"
        )
