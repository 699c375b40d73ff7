"""The module and data passed to the running call of ``fit``, for the functions that its job names."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from atoll.datacenter.data.dataset import DatasetSequences
from atoll.datacenter.errors import DataError
from atoll.datacenter.models.spec import ModelSpec


@dataclass(frozen=True)
class Given:
    """The module and data that the caller passed.

    Attributes:
        spec: the module's; None for a model given by name.
        sequences: training data.
        held_out: data that is not trained on, if there is any.
    """

    spec: ModelSpec | None
    sequences: DatasetSequences
    held_out: DatasetSequences | None


GIVEN: ContextVar[Given] = ContextVar("given")


def given_model(_settings: Mapping[str, object]) -> ModelSpec | None:
    """``model.kind`` of a job that trains a module."""
    return GIVEN.get().spec


def given_data(_settings: Mapping[str, object], _sequence: int, split: str) -> DatasetSequences:
    """``data.source`` of a job that ``fit`` makes.

    Raises:
        DataError: if held-out data is requested and was not given.
    """
    given = GIVEN.get()
    if split == "train":
        return given.sequences
    if given.held_out is None:
        raise DataError("evaluation needs data that is not trained on: fit(..., held_out=...)")
    return given.held_out
