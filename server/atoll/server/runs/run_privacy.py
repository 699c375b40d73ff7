"""The privacy of one run's releases: none in a plain run; budget, noise and charge in a private one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from atoll.server.aggregation import Grid, PartialSum, grid_for
from atoll.server.stores import release as stored

if TYPE_CHECKING:
    from atoll.server.ingest.node import FoldItem, SumKey
    from atoll.server.jobs import JobSpec
    from atoll.server.privacy.run import PrivateRun
    from atoll.server.runs.driver import RunDriver
    from atoll.server.runs.private.budgets import Budgets
    from atoll.server.runs.services import Services
    from atoll.server.stores import Blob, BlobWriter
    from atoll.wire.privacy_terms import PrivacyTerms

OpenSink = Callable[[str, int], "BlobWriter"]
"""Opens a blob, given a name for its content and its size in bytes."""
Recorder = Callable[[Connection], object]
"""Records a release in a transaction."""


@dataclass(frozen=True, slots=True)
class PrivateOutcome:
    """The result of a private release: the run's next private state, and the clip norm for its charge."""

    after: PrivateRun
    clip: float


@dataclass(frozen=True, slots=True)
class RoundSum:
    """The sum of a round, as passed to its release.

    Attributes:
        version: models released before.
        key: names the sum.
        total: the sum of the contributions.
        items: the contributions.
        norms: L2 norms, by update id, of contributions that only their aggregators can read; set if the release needs
            norms.
        states: blobs of earlier releases, by name.
        open_sink: opens a blob for data that later releases need.
    """

    version: int
    key: SumKey
    total: PartialSum
    items: Sequence[FoldItem]
    norms: Mapping[str, float]
    states: Mapping[str, Blob]
    open_sink: OpenSink


class RunPrivacy:
    """The privacy of a run's releases. A plain run's sums are released unchanged and cost nothing.

    ``is_free``: a round costs nothing, so a draw need not wait for a reservation. ``releases_empty_sums``: a round
    without updates is released like any other. ``DifferentialPrivacy`` overrides these methods for private runs.
    """

    is_free = True
    releases_empty_sums = False

    @property
    def needs_norms(self) -> bool:
        """Whether a release depends on the norms of its updates."""
        return False

    async def reserve(self, *, afresh: bool = False) -> None:
        """Reserve the cost of the next round; ``afresh`` verifies the whole ledger first.

        Raises:
            BudgetSpentError: if the budget does not cover it.
            TooFewReportsError: if too few participants report.
        """

    def release_reservation(self) -> None:
        """Release the reservation: the round does not begin now."""

    def hold(self) -> None:
        """Reserve the cost of a round that began before a restart."""

    async def reset_shortfall(self) -> None:
        """Reset the count of missing reports: an operator resumes the run although too few participants reported."""

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid | None:
        """The grid of the train round after ``version`` releases; None if nothing is to be summed."""
        del version
        return grid_for(total_weight, max_abs) if total_weight else None

    def cohort_size(self, drawn: int) -> int:
        """The size of the cohort in the members' invitations."""
        return drawn

    def terms(self, version: int) -> PrivacyTerms | None:
        """The privacy terms that members of the round receive."""
        del version
        return None

    def noise_on_sum(self, version: int) -> float:
        """Standard deviation of the noise on each element of the sum after ``version`` releases."""
        del version
        return 0.0

    async def precompute_charge(self, version: int) -> None:
        """Compute the charge of a release ahead of its transaction."""

    @contextlib.contextmanager
    def released(self, summed: RoundSum) -> Iterator[tuple[PartialSum, PrivateOutcome | None]]:
        """The sum to release in place of ``summed.total``, and the private outcome; blocks."""
        yield summed.total, None

    def recorder(self, record: stored.Release, outcome: PrivateOutcome | None, version: int) -> Recorder:
        """The function that records a release with its charge in a transaction."""
        del outcome, version
        return lambda connection: stored.record(connection, record)


class Promise:
    """The privacy that a job promises; a plain job promises nothing. ``PrivatePromise`` is for private jobs."""

    def kept_bytes(self, elements: int) -> int:
        """Bytes that stay on disk between rounds, for a sum of ``elements`` elements."""
        del elements
        return 0

    def check_plan(self, connection: Connection) -> None:
        """Check that the budget suffices for all rounds.

        Raises:
            BudgetSpentError: if it does not.
            StoreDamagedError: if the ledger is known to be damaged.
        """

    def warnings(self, connection: Connection, elements: int, project: str) -> tuple[str, ...]:
        """Reasons for which a good result is unlikely, for a sum of ``elements`` elements over the project."""
        del connection, elements, project
        return ()

    def store(self, connection: Connection, run_id: str, now: float) -> None:
        """Make the promise durable, in the transaction that submits the run."""

    def privacy(self, driver: RunDriver, services: Services, budgets: Budgets, spec: JobSpec) -> RunPrivacy:
        """The privacy of the run."""
        del driver, services, budgets, spec
        return RunPrivacy()
