"""Checks of tokens and labels against the model's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.packing import IGNORED, Ints, Rows, Sequences
from atoll.datacenter.errors import DataError
from atoll.datacenter.job.huggingface import vocabulary_size

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of a model.

    Attributes:
        size: every token is below it.
        built_in: whether it is that of the built-in model, whose job sets it (``model.vocab``) and the length of its
            sequences (``batch.sequence``); else of a model of ``transformers``, which may read other data than tokens.
    """

    size: int
    built_in: bool = True


def vocabulary_of(model: ModelSection) -> Vocabulary | None:
    """Return the vocabulary of the job's model; None if it is not known.

    Raises:
        LayoutError: if the config of a checkpoint cannot be read.
    """
    if model.kind == "llama":
        return Vocabulary(model.vocab)
    size = vocabulary_size(Path(model.weights or "")) if model.kind == "transformers" else None
    return None if size is None else Vocabulary(size, built_in=False)


def for_model(sequences: Sequences, sequence: int, vocabulary: Vocabulary | None) -> Sequences:
    """Return user-supplied sequences, checked when they are read if the model's vocabulary is known.

    Args:
        sequences: what is read.
        sequence: tokens of a sequence of the built-in model, ``batch.sequence``.
        vocabulary: the model's.

    Raises:
        DataError: if the first sequence is not for the built-in model, or has a token or label beyond the vocabulary.
    """
    if vocabulary is None:
        return sequences
    start = np.zeros(1, np.int64)
    first = sequences.rows(start)
    if vocabulary.built_in:
        _check_shapes(sequences.name, first, sequence)
    elif first.inputs.dtype.kind != "i" or first.inputs.ndim != 2:
        return sequences
    checked = LanguageSequences(sequences, vocabulary, labelled=first.labels.shape == first.inputs.shape)
    checked.rows(start)
    return checked


def _check_shapes(name: str, first: Rows, sequence: int) -> None:
    """Check that the first sequence has ``sequence`` tokens and as many labels."""
    if first.inputs.dtype.kind != "i" or first.inputs.shape[1:] != (sequence,):
        raise DataError(
            f"{name}[0] has an input of {first.inputs.dtype} and shape {first.inputs.shape[1:]}: a language "
            f"model with batch.sequence = {sequence} reads {sequence} token ids"
        )
    if first.labels.shape != first.inputs.shape:
        raise DataError(
            f"{name}[0] has {sequence} tokens and labels of shape {first.labels.shape[1:]}: give each token "
            f"one label, the next token, or {IGNORED} where there is none"
        )


class LanguageSequences:
    """Sequences whose tokens and labels are checked when they are read, before they reach the model.

    On a GPU a token beyond the vocabulary ends the process without naming the token.

    Args:
        sequences: what is read.
        vocabulary: the model's vocabulary.
        labelled: whether each token has a label; other labels are classes, and not checked.
    """

    def __init__(self, sequences: Sequences, vocabulary: Vocabulary, *, labelled: bool) -> None:
        self._sequences, self._vocabulary, self._labelled = sequences, vocabulary, labelled
        self.name, self.digest = sequences.name, sequences.digest

    def __len__(self) -> int:
        return len(self._sequences)

    def rows(self, indices: Ints) -> Rows:
        """Return the sequences with these indices (int64 [b]), in that order.

        Raises:
            DataError: if a token or a label is not in the vocabulary; names it and its sequence.
        """
        rows = self._sequences.rows(indices)
        self._check("token", rows.inputs, self._beyond(rows.inputs), indices)
        if self._labelled:
            self._check("label", rows.labels, (rows.labels != IGNORED) & self._beyond(rows.labels), indices)
        return rows

    def _beyond(self, values: NDArray[np.int64] | NDArray[np.float32]) -> NDArray[np.bool_]:
        wrong: NDArray[np.bool_] = (values < 0) | (values >= self._vocabulary.size)
        return wrong

    def _check(self, what: str, values: NDArray[np.generic], wrong: NDArray[np.bool_], indices: Ints) -> None:
        if not wrong.any():
            return
        place = tuple(np.argwhere(wrong)[0])
        raise DataError(
            f"{self.name}[{indices[place[0]]}] has the {what} {values[place]}, but the model's vocabulary has "
            f"{self._vocabulary.size}: use the model's own tokenizer"
            f"{', or set model.vocab' if self._vocabulary.built_in else ''}"
        )
