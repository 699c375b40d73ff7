"""The privacy of one run's releases: none in a plain run; budget, noise and charge in a private one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
"""Opens a blob by the name of what it holds and the number of its bytes."""
Recorder = Callable[[Connection], object]
"""Records a release in a transaction."""


@dataclass(frozen=True, slots=True)
class PrivateOutcome:
    """What a private release leaves: the run after it, and the clip norm for the charge."""

    after: PrivateRun
    clip: float


@dataclass(frozen=True, slots=True)
class RoundSum:
    """The sum of a round, as its release gets it.

    Attributes:
        version: models released before.
        key: names the sum.
        total: the sum of the contributions.
        items: the contributions.
        states: blobs that earlier releases left, by name.
        open_sink: opens a blob for what later releases need.
    """

    version: int
    key: SumKey
    total: PartialSum
    items: Sequence[FoldItem]
    states: Mapping[str, Blob]
    open_sink: OpenSink


class RunPrivacy(Protocol):
    """What each release of a run needs besides the sum."""

    @property
    def is_free(self) -> bool:
        """Whether a round costs nothing, so that a draw need not wait for a reservation."""
        ...

    @property
    def sums_nothing(self) -> bool:
        """Whether a round without any update is released like any other."""
        ...

    async def reserve(self, *, afresh: bool = False) -> None:
        """Reserve what the next round will cost; ``afresh``: after an operator's order, from the whole ledger.

        Raises:
            BudgetSpentError: if there is not so much left.
            TooFewReportsError: if too few participants report for the next release.
        """
        ...

    def give_back(self) -> None:
        """Give back what is reserved: the round does not begin now."""
        ...

    def hold(self) -> None:
        """Reserve again what a round costs that was let in before a restart."""
        ...

    async def forgive(self) -> None:
        """Count reports anew: an operator has seen that too few came, and goes on."""
        ...

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid | None:
        """The grid of the train round after ``version`` releases; None if nothing is to be summed."""
        ...

    def cohort_size(self, drawn: int) -> int:
        """The size of the cohort that its members are told."""
        ...

    def terms(self, version: int) -> PrivacyTerms | None:
        """What members of the round are promised."""
        ...

    async def foresee(self, version: int) -> None:
        """Prepare the account of a release before a round waits for it."""
        ...

    def released(self, summed: RoundSum) -> contextlib.AbstractContextManager[tuple[PartialSum, PrivateOutcome | None]]:
        """The sum that is released in place of ``summed.total``, and what the release leaves; blocks."""
        ...

    def recorder(self, record: stored.Release, outcome: PrivateOutcome | None, version: int) -> Recorder:
        """What records a release with its charge."""
        ...


class NoPrivacy:
    """See ``RunPrivacy``: sums are released as they are, and cost nothing."""

    is_free = True
    sums_nothing = False

    async def reserve(self, *, afresh: bool = False) -> None:
        """See ``RunPrivacy``."""

    def give_back(self) -> None:
        """See ``RunPrivacy``."""

    def hold(self) -> None:
        """See ``RunPrivacy``."""

    async def forgive(self) -> None:
        """See ``RunPrivacy``."""

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid | None:
        """See ``RunPrivacy``."""
        del version
        return grid_for(total_weight, max_abs) if total_weight else None

    def cohort_size(self, drawn: int) -> int:
        """See ``RunPrivacy``."""
        return drawn

    def terms(self, version: int) -> None:
        """See ``RunPrivacy``."""
        del version

    async def foresee(self, version: int) -> None:
        """See ``RunPrivacy``."""

    @contextlib.contextmanager
    def released(self, summed: RoundSum) -> Iterator[tuple[PartialSum, None]]:
        """See ``RunPrivacy``."""
        yield summed.total, None

    def recorder(self, record: stored.Release, outcome: PrivateOutcome | None, version: int) -> Recorder:
        """See ``RunPrivacy``."""
        del outcome, version
        return lambda connection: stored.record(connection, record)


class Promise(Protocol):
    """The privacy that a job promises."""

    def kept_bytes(self, elements: int) -> int:
        """Bytes that stay on disk between rounds, for a sum of ``elements`` elements."""
        ...

    def check_plan(self, connection: Connection) -> None:
        """Check that the budget suffices for all rounds.

        Raises:
            BudgetSpentError: if it does not.
            StoreDamagedError: if the ledger is known to be damaged.
        """
        ...

    def store(self, connection: Connection, run_id: str, now: float) -> None:
        """Make the promise durable, in the transaction that submits the run."""
        ...

    def privacy(self, driver: RunDriver, services: Services, budgets: Budgets, spec: JobSpec) -> RunPrivacy:
        """The privacy of the run."""
        ...


class NoPromise:
    """See ``Promise``: nothing is promised."""

    def kept_bytes(self, elements: int) -> int:
        """See ``Promise``."""
        del elements
        return 0

    def check_plan(self, connection: Connection) -> None:
        """See ``Promise``."""

    def store(self, connection: Connection, run_id: str, now: float) -> None:
        """See ``Promise``."""

    def privacy(self, driver: RunDriver, services: Services, budgets: Budgets, spec: JobSpec) -> NoPrivacy:
        """See ``Promise``."""
        del driver, services, budgets, spec
        return NoPrivacy()
