"""The privacy terms that an operator promises for a round: ``PrivacyTerms`` of the contract, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from atoll.wire.errors import WireError
from atoll.wire.v1 import participation_pb2

Number = TypeVar("Number", bound=int)
Kind = TypeVar("Kind", bound=StrEnum)

MAX_POPULATION_CHARS = 256


class PrivacyMechanism(StrEnum):
    """The mechanism that adds noise to the sum of a cohort's updates."""

    GAUSSIAN = "gaussian"
    TREE = "tree"
    BANDED = "banded"
    BLT = "blt"


class PrivacyAdjacency(StrEnum):
    """How neighbouring data sets differ."""

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"


class PrivacySampling(StrEnum):
    """How the cohort was drawn, if epsilon counts the amplification by sampling."""

    NONE = "none"
    POISSON = "poisson"
    FIXED_SIZE = "fixed_size"


class PrivacyUnit(StrEnum):
    """The unit of privacy."""

    PARTICIPANT = "participant"
    ROW = "row"


@dataclass(frozen=True)
class PrivacyTerms:
    """The operator's promise for one round.

    Attributes:
        mechanism: adds noise to the sum.
        noise_multiplier: standard deviation of the noise over the largest contribution of one unit to a sum.
        clip_norm: L2 norm to which updates of this round are clipped, before they are weighted. With rows as the unit
            nothing is clipped: it is the largest norm of one row.
        epsilon: of all planned rounds of the run together; infinite without noise.
        delta: probability that epsilon does not hold.
        adjacency: how neighbouring data sets differ.
        sampling: how the cohort was drawn.
        sample_rate: probability that a participant is in a cohort, in (0, 1]; 1 if no amplification is counted.
        population: name under which the operator's ledger adds up runs.
        unit: the unit of privacy.

    Raises:
        WireError: names a value that is out of range, and what is allowed.
    """

    mechanism: PrivacyMechanism
    noise_multiplier: float
    clip_norm: float
    epsilon: float
    delta: float
    adjacency: PrivacyAdjacency
    sampling: PrivacySampling
    sample_rate: float
    population: str
    unit: PrivacyUnit = PrivacyUnit.PARTICIPANT

    def __post_init__(self) -> None:
        _within("noise_multiplier", self.noise_multiplier, "at least 0", holds=0 <= self.noise_multiplier < math.inf)
        _within("clip_norm", self.clip_norm, "above 0", holds=0 < self.clip_norm < math.inf)
        _within("epsilon", self.epsilon, "at least 0", holds=self.epsilon >= 0)
        _within("delta", self.delta, "from 0 to below 1", holds=0 <= self.delta < 1)
        _within("sample_rate", self.sample_rate, "above 0, at most 1", holds=0 < self.sample_rate <= 1)
        if len(self.population) > MAX_POPULATION_CHARS:
            raise WireError(f"privacy.population has {len(self.population)} characters, at most {MAX_POPULATION_CHARS}")


_Proto = participation_pb2.PrivacyTerms
_MECHANISMS: dict[_Proto.Mechanism.ValueType, PrivacyMechanism] = {
    _Proto.MECHANISM_GAUSSIAN: PrivacyMechanism.GAUSSIAN,
    _Proto.MECHANISM_TREE: PrivacyMechanism.TREE,
    _Proto.MECHANISM_BANDED: PrivacyMechanism.BANDED,
    _Proto.MECHANISM_BLT: PrivacyMechanism.BLT,
}
_ADJACENCIES: dict[_Proto.Adjacency.ValueType, PrivacyAdjacency] = {
    _Proto.ADJACENCY_ADD_REMOVE: PrivacyAdjacency.ADD_REMOVE,
    _Proto.ADJACENCY_REPLACE_ONE: PrivacyAdjacency.REPLACE_ONE,
}
_SAMPLINGS: dict[_Proto.Sampling.ValueType, PrivacySampling] = {
    _Proto.SAMPLING_NONE: PrivacySampling.NONE,
    _Proto.SAMPLING_POISSON: PrivacySampling.POISSON,
    _Proto.SAMPLING_FIXED_SIZE: PrivacySampling.FIXED_SIZE,
}
_UNITS: dict[_Proto.Unit.ValueType, PrivacyUnit] = {
    _Proto.UNIT_PARTICIPANT: PrivacyUnit.PARTICIPANT,
    _Proto.UNIT_ROW: PrivacyUnit.ROW,
}
_MECHANISM_NUMBERS = {value: number for number, value in _MECHANISMS.items()}
_ADJACENCY_NUMBERS = {value: number for number, value in _ADJACENCIES.items()}
_SAMPLING_NUMBERS = {value: number for number, value in _SAMPLINGS.items()}
_UNIT_NUMBERS = {value: number for number, value in _UNITS.items()}


def terms_to_proto(terms: PrivacyTerms) -> participation_pb2.PrivacyTerms:
    """The terms as their message."""
    return _Proto(
        mechanism=_MECHANISM_NUMBERS[terms.mechanism],
        noise_multiplier=terms.noise_multiplier,
        clip_norm=terms.clip_norm,
        epsilon=terms.epsilon,
        delta=terms.delta,
        adjacency=_ADJACENCY_NUMBERS[terms.adjacency],
        sampling=_SAMPLING_NUMBERS[terms.sampling],
        sample_rate=terms.sample_rate,
        population=terms.population,
        unit=_UNIT_NUMBERS[terms.unit],
    )


def terms_from_proto(message: participation_pb2.PrivacyTerms) -> PrivacyTerms:
    """The terms of a message.

    Raises:
        WireError: for a value that is out of range or unknown to this version.
    """
    return PrivacyTerms(
        mechanism=_known("mechanism", message.mechanism, _MECHANISMS),
        noise_multiplier=message.noise_multiplier,
        clip_norm=message.clip_norm,
        epsilon=message.epsilon,
        delta=message.delta,
        adjacency=_known("adjacency", message.adjacency, _ADJACENCIES),
        sampling=_known("sampling", message.sampling, _SAMPLINGS),
        sample_rate=message.sample_rate,
        population=message.population,
        unit=_known("unit", message.unit, _UNITS),
    )


def _known(name: str, number: Number, values: Mapping[Number, Kind]) -> Kind:
    value = values.get(number)
    if value is None:
        allowed = ", ".join(sorted(values.values()))
        raise WireError(
            f"privacy.{name} is {number}, which this version does not know (it knows {allowed}); upgrade it"
        )
    return value


def _within(name: str, value: float, allowed: str, *, holds: bool) -> None:
    if not holds:
        raise WireError(f"privacy.{name} is {value}; allowed is {allowed}")
