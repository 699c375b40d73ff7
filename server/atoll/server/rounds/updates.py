"""Keys of rounds, and references to updates."""

import math
from dataclasses import dataclass

Metrics = tuple[tuple[str, float], ...]
"""Reported figures as (name, value); values are finite."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A histogram of scores (`atoll.wire.scores`), by the name of its metric."""

    name: str
    negatives: tuple[int, ...]
    positives: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class RoundKey:
    """One attempt at one round; both count from 0, and later keys compare greater."""

    round: int
    attempt: int

    def __str__(self) -> str:
        """The round as commands, logs and errors show it, counted from 1: ``7``, or ``7.2`` for its second attempt."""
        return f"{self.round + 1}.{self.attempt + 1}" if self.attempt else f"{self.round + 1}"


@dataclass(frozen=True, slots=True)
class UpdateRef:
    """A durable update, by name.

    Attributes:
        key: the round that it was made for.
        participant: its author.
        digest: hex digest of its manifest.
        weight: examples that it was trained on.
        node: ingest node that holds it.
    """

    key: RoundKey
    participant: str
    digest: str
    weight: int
    node: str


def check_metrics(metrics: Metrics) -> None:
    """Refuse metrics that would make every mean useless.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    for name, value in metrics:
        if not math.isfinite(value):
            raise ValueError(f"metric {name!r} = {value}: must be finite; leave the metric out, or reject the report")
