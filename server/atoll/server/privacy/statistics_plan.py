"""The expected errors of a private run of statistics, known before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.statistics import row_norm
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.server.jobs.spec import JobSpec
    from atoll.server.jobs.statistics_section import Statistics

GOOD_SHARE = 0.05
"""Standard error of a count, as a share of all rows, up to which no warning is given."""
SHARES = (0.01, GOOD_SHARE, 0.2)


@dataclass(frozen=True, slots=True)
class StatisticsPlan:
    """The noise of a run of statistics.

    Attributes:
        unit: what is protected: participant or row.
        epsilon: of the run.
        delta: of the run.
        noise_multiplier: standard deviation of the noise over the most by which one unit moves the sums.
        unit_norm: that most: the L2 norm of one unit.
        noise_on_count: standard error of each count, in rows.
        most_rows: rows of a whole cohort whose participants all have ``max_rows``.
        participants_for: participants of ``max_rows`` rows with which that error is a share of all rows, by the share.
        noise_on_count_by_row: the error if rows were the unit, at the same epsilon and delta.
    """

    unit: str
    epsilon: float
    delta: float
    noise_multiplier: float
    unit_norm: float
    noise_on_count: float
    most_rows: int
    participants_for: dict[float, int]
    noise_on_count_by_row: float

    @property
    def share(self) -> float:
        """The standard error of a count as a share of all rows, at best."""
        return self.noise_on_count / self.most_rows

    def warnings(self) -> Iterator[str]:
        """Reasons for which the figures are useless, in words."""
        if self.share <= GOOD_SHARE:
            return
        needed = counted(self.participants_for[GOOD_SHARE], "participant")
        other = (
            f'; or protect rows instead of participants, privacy.unit = "row": {self.noise_on_count_by_row:.3g} rows'
            if self.unit == "participant"
            else "; or a larger privacy.epsilon"
        )
        yield (
            f"noise will hide the figures: each count has a standard error of {self.noise_on_count:.4g} rows, while "
            f"all participants together have at most {self.most_rows}; for {GOOD_SHARE:.0%} of the rows it takes "
            f"{needed}{other}"
        )


def statistics_plan(spec: JobSpec, section: Statistics) -> StatisticsPlan | None:
    """The noise of a valid job; None without ``[privacy]``. May take seconds."""
    contract = contract_of(spec)
    return None if contract is None else plan_under(contract, section)


def plan_under(contract: Contract, section: Statistics) -> StatisticsPlan:
    """The noise of a run with this contract."""
    noise = contract.noise_multiplier * contract.clip
    rows = section.max_rows or 1
    return StatisticsPlan(
        unit=contract.adjacency.unit,
        epsilon=contract.epsilon_after(1),
        delta=contract.delta,
        noise_multiplier=contract.noise_multiplier,
        unit_norm=contract.clip,
        noise_on_count=noise,
        most_rows=contract.planned_cohort * rows,
        participants_for={share: math.ceil(noise / (share * rows)) for share in SHARES},
        noise_on_count_by_row=contract.noise_multiplier * row_norm(section.query),
    )
