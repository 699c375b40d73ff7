"""Speed-up over ranks: Amdahl's and Gustafson's laws, and tables of measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from atoll.datacenter.scaling.laws import ScalingError
from atoll.datacenter.scaling.runs import MeasuredRun

Kind = Literal["strong", "weak"]
ALIKE = 0.01
"""Relative difference up to which tokens of a step count as equal."""


@dataclass(frozen=True, slots=True)
class Row:
    """Measurements with one number of ranks.

    Attributes:
        ranks: p.
        tokens_per_s: tokens per second of all ranks.
        speedup: relative to the fewest ranks, times their number, which assumes that those scale perfectly.
        efficiency: speed-up / p.
        serial_share: Karp and Flatt 1990, equation 1 (strong scaling): the part that did not speed up; None for the
            first row.
        predicted: speed-up by Amdahl (strong) or Gustafson (weak) with the serial share fitted to all rows.
    """

    ranks: int
    tokens_per_s: float
    speedup: float
    efficiency: float
    serial_share: float | None
    predicted: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """A scaling table.

    Attributes:
        kind: strong: the same work per step on more ranks; weak: work per step in proportion to the ranks.
        serial_share: serial share of the law that fits the rows best, from 0 to 1.
        formula: formula of that law.
        rows: rows in order of ranks.
    """

    kind: Kind
    serial_share: float
    formula: str
    rows: tuple[Row, ...]


AMDAHL = "S(p) = 1 / (s + (1 - s) / p)"
GUSTAFSON = "S(p) = p - s * (p - 1)"


def amdahl(serial_share: float, ranks: int) -> float:
    """Return the speed-up of fixed work if a share of it cannot be divided (Amdahl 1967).

    Raises:
        ScalingError: for a share outside [0, 1] or less than one rank.
    """
    _check(serial_share, ranks)
    return 1 / (serial_share + (1 - serial_share) / ranks)


def gustafson(serial_share: float, ranks: int) -> float:
    """Return the speed-up of work that grows with the ranks; the share is of the time on all ranks (Gustafson 1988).

    Raises:
        ScalingError: for a share outside [0, 1] or less than one rank.
    """
    _check(serial_share, ranks)
    return ranks - serial_share * (ranks - 1)


def speedup_of(runs: Sequence[MeasuredRun], kind: Kind | None = None) -> Speedup:
    """Return the scaling table of measured runs; of several runs on the same number of ranks, the fastest counts.

    Args:
        runs: runs with ``ranks``, ``tokens_per_s`` and ``tokens_per_step``, at least two numbers of ranks.
        kind: kind of scaling; None: determined from the tokens of a step.

    Raises:
        ScalingError: naming what is missing, or that steps are neither equal nor in proportion to the ranks.
    """
    by_ranks = _fastest(runs)
    if len(by_ranks) < 2:
        raise ScalingError(f"{len(by_ranks)} numbers of ranks among {len(runs)} runs: a table needs at least two")
    kind = kind or _kind_of(by_ranks)
    fewest = min(by_ranks)
    one = by_ranks[fewest].rate / fewest
    measured = {ranks: by_ranks[ranks].rate / one for ranks in sorted(by_ranks)}
    share = _serial_share(measured, kind)
    law = amdahl if kind == "strong" else gustafson
    rows = tuple(
        Row(
            ranks=ranks,
            tokens_per_s=by_ranks[ranks].rate,
            speedup=speedup,
            efficiency=speedup / ranks,
            serial_share=_karp_flatt(speedup, ranks) if kind == "strong" and ranks > 1 and ranks != fewest else None,
            predicted=law(share, ranks),
        )
        for ranks, speedup in measured.items()
    )
    return Speedup(kind, share, AMDAHL if kind == "strong" else GUSTAFSON, rows)


@dataclass(frozen=True, slots=True)
class _Measured:
    rate: float
    step_tokens: float


def _fastest(runs: Sequence[MeasuredRun]) -> dict[int, _Measured]:
    found: dict[int, _Measured] = {}
    for run in runs:
        if run.ranks is None or run.tokens_per_s is None or run.tokens_per_step is None:
            raise ScalingError(f"run {run.name}: a table needs ranks, tokens_per_s and tokens_per_step")
        if run.ranks not in found or run.tokens_per_s > found[run.ranks].rate:
            found[run.ranks] = _Measured(run.tokens_per_s, run.tokens_per_step)
    return found


def _kind_of(by_ranks: dict[int, _Measured]) -> Kind:
    first = by_ranks[min(by_ranks)]
    work = {ranks: found.step_tokens / first.step_tokens for ranks, found in by_ranks.items()}
    if all(abs(factor - 1) <= ALIKE for factor in work.values()):
        return "strong"
    if all(abs(factor / (ranks / min(by_ranks)) - 1) <= ALIKE for ranks, factor in work.items()):
        return "weak"
    said = ", ".join(f"{ranks} ranks: {found.step_tokens:g}" for ranks, found in sorted(by_ranks.items()))
    raise ScalingError(
        f"tokens of a step are neither the same (strong scaling) nor in proportion to the ranks (weak): {said}"
    )


def _karp_flatt(speedup: float, ranks: int) -> float:
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


def _serial_share(measured: dict[int, float], kind: Kind) -> float:
    """Least squares; both laws are lines in the share: ``1/S - 1/p = s (1 - 1/p)`` and ``p - S = s (p - 1)``."""
    top = bottom = 0.0
    for ranks, speedup in measured.items():
        factor = 1 - 1 / ranks if kind == "strong" else ranks - 1.0
        lost = 1 / speedup - 1 / ranks if kind == "strong" else ranks - speedup
        top, bottom = top + factor * lost, bottom + factor * factor
    return min(1.0, max(0.0, top / bottom))


def _check(serial_share: float, ranks: int) -> None:
    if not 0 <= serial_share <= 1:
        raise ScalingError(f"a serial share of {serial_share:g}: allowed is a number from 0 to 1")
    if ranks < 1:
        raise ScalingError(f"{ranks} ranks: allowed is a whole number of at least 1")
