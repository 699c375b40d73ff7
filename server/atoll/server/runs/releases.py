"""What a run's releases do besides summing: nothing in a plain run; budget, noise and charge in a private one."""

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
    from atoll.server.privacy.run import PrivateRun
    from atoll.server.stores import Blob, BlobWriter
    from atoll.wire.privacy_terms import PrivacyTerms

OpenSink = Callable[[str, int], "BlobWriter"]
"""Opens a blob by the name of what it holds and the number of its bytes."""
Recorder = Callable[[Connection], object]
"""Records a release in a transaction."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a private release leaves: the run after it, and the clip norm for the charge."""

    after: PrivateRun
    clip: float


class Releases(Protocol):
    """The releases of one run, one after another."""

    @property
    def draws_at_once(self) -> bool:
        """Whether a cohort may be drawn without waiting for a budget."""
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

    def released(
        self,
        version: int,
        key: SumKey,
        total: PartialSum,
        items: Sequence[FoldItem],
        states: Mapping[str, Blob],
        open_sink: OpenSink,
    ) -> contextlib.AbstractContextManager[tuple[PartialSum, Settled | None]]:
        """The sum that is released in place of ``total``, and what the release leaves; blocks.

        Args:
            version: releases before this one.
            key: names the sum.
            total: the sum of the contributions.
            items: the contributions.
            states: blobs that earlier releases left, by name.
            open_sink: opens a blob for what later releases need.
        """
        ...

    def recorder(self, record: stored.Release, settled: Settled | None, version: int) -> Recorder:
        """What records a release with its charge."""
        ...


class PlainReleases:
    """See ``Releases``: sums are released as they are, and cost nothing."""

    draws_at_once = True
    sums_nothing = False

    async def reserve(self, *, afresh: bool = False) -> None:
        """See ``Releases``."""

    def give_back(self) -> None:
        """See ``Releases``."""

    def hold(self) -> None:
        """See ``Releases``."""

    async def forgive(self) -> None:
        """See ``Releases``."""

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid | None:
        """See ``Releases``."""
        del version
        return grid_for(total_weight, max_abs) if total_weight else None

    def cohort_size(self, drawn: int) -> int:
        """See ``Releases``."""
        return drawn

    def terms(self, version: int) -> None:
        """See ``Releases``."""
        del version

    async def foresee(self, version: int) -> None:
        """See ``Releases``."""

    @contextlib.contextmanager
    def released(
        self,
        version: int,
        key: SumKey,
        total: PartialSum,
        items: Sequence[FoldItem],
        states: Mapping[str, Blob],
        open_sink: OpenSink,
    ) -> Iterator[tuple[PartialSum, None]]:
        """See ``Releases``."""
        del version, key, items, states, open_sink
        yield total, None

    def recorder(self, record: stored.Release, settled: Settled | None, version: int) -> Recorder:
        """See ``Releases``."""
        del settled, version
        return lambda connection: stored.record(connection, record)
