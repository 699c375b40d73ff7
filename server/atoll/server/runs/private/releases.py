"""The private side of one run's releases: which state the round in work has, and what its release leaves behind."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from blake3 import blake3
from sqlalchemy import Connection

from atoll.server.aggregation import Grid, GridError, PartialSum
from atoll.server.aggregation.noised import Integers, NoisedSum
from atoll.server.errors import CorruptDataError, InvalidRequestError
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.records import norm_of
from atoll.server.jobs import JobSpec
from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.errors import BudgetSpentError, TooFewReportsError, UncomparedError
from atoll.server.privacy.events import Event
from atoll.server.privacy.mechanisms.interface import NOISE_BYTES
from atoll.server.privacy.noise import warm
from atoll.server.privacy.reservations import Reservations
from atoll.server.privacy.run import PrivateRun, Summed
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.releases import OpenSink, Recorder, Settled
from atoll.server.runs.services import Services
from atoll.server.stores import Blob, noise_states
from atoll.server.stores import release as stored
from atoll.server.stores.noise_states import NoiseRecord
from atoll.server.stores.release import Release
from atoll.wire.privacy_terms import PrivacyTerms


class Budgets:
    """What the rounds under way of all runs may spend."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reservations = Reservations()
        self._versions: dict[str, int] = {}  # run → the release that it has reserved for
        self._uncompared: dict[str, str] = {}  # run → when its ledger was restored

    def hold_back(self, run: str, restored: str) -> None:
        """Nothing of the run is released until ``let_go``: its ledger may lack charges since it was ``restored``."""
        self._uncompared[run] = restored

    def let_go(self, run: str) -> None:
        """Somebody has compared the ledger."""
        self._uncompared.pop(run, None)

    def require_compared(self, run: str) -> None:
        """Raise if the run is held back.

        Raises:
            UncomparedError: saying since when, and what to do.
        """
        if run in self._uncompared:
            raise UncomparedError(run, self._uncompared[run])

    async def reserve(self, run: str, contract: Contract, version: int, *, afresh: bool = False) -> None:
        """Reserve what a round will cost, or see that there is not so much left; ``afresh`` as ``ledger.check``.

        Raises:
            BudgetSpentError: naming what is spent, what the round would make it, and the limit.
        """
        self.require_compared(run)
        others = self.hold(run, contract, version)
        try:
            await self._services.reader.run(ledger.check, contract, run, version, reserved=others, afresh=afresh)
        except BaseException:
            self.release(run)
            raise

    def hold(self, run: str, contract: Contract, version: int) -> tuple[Event, ...]:
        """Reserve what a round will cost, whether there is so much left or not; what others have reserved."""
        self._versions[run] = version
        return self._reservations.hold(contract.population, run, contract.cost(version))

    def release(self, run: str) -> None:
        """The run has no round under way."""
        self._versions.pop(run, None)
        self._reservations.release(run)

    def follow(self, state: RunState) -> None:
        """Give back what the run has reserved once that is charged, for it must not count twice, or waits."""
        live = state.round
        waits = live is None or live.phase in (Phase.CHARGED, Phase.ABANDONED)
        if waits or state.status is not RunStatus.RUNNING or self._versions.get(state.run_id) != state.version:
            self.release(state.run_id)


def promised(spec: JobSpec, elements: int) -> PrivateRun | None:
    """What a job promises, before its first release; None without a privacy section. Takes seconds.

    Args:
        spec: the job.
        elements: of the model's part that one round updates, at most.

    Raises:
        InvalidRequestError: if no noise keeps the promise, it cannot be drawn, or the sum has no room for it.
    """
    contract = contract_of(spec)
    if contract is None:
        return None
    run = PrivateRun.begin(contract, contract.epsilon_after(contract.rounds))
    warm()  # not when the first round waits for it
    try:
        run.rehearse(elements, spec.aggregation.max_abs)
    except GridError as error:
        raise InvalidRequestError("job.privacy", error.detail.message, error.detail.remedy) from error
    except (ValueError, OverflowError) as error:
        remedy = "change privacy.noise_multiplier, the clip norm or adaptive.count_noise"
        raise InvalidRequestError("job.privacy", f"this noise cannot be drawn: {error}", remedy) from error
    return run


def store_promise(connection: Connection, run_id: str, private: PrivateRun, now: float) -> None:
    """Make a new run's promise and secret durable, in the transaction that submits it.

    Raises:
        AdjacencyError: if its population was promised something else.
    """
    ledger.enrol(connection, private.contract, now)
    noise_states.add(connection, NoiseRecord(run_id, private.state.version, private.to_text()))


def find_promise(connection: Connection, run_id: str) -> PrivateRun:
    """What ``store_promise``, or the run's last release, has left.

    Raises:
        CorruptDataError: if it is gone or damaged.
    """
    found = noise_states.find(connection, run_id)
    if found is None:
        raise CorruptDataError(
            "privacy.state", f"the noise of run {run_id} is not on record", "restore the database from a backup"
        )
    return PrivateRun.from_text(found.body)


class PrivateReleases:
    """See ``Releases``: each round reserves budget, its sum gets noise, and the release is charged.

    Args:
        driver: the run.
        current: the run's promise, and the state of its noise.
        services: stores and uploads.
        budgets: what all runs may spend.
        planned: the job's cohort size.
    """

    draws_at_once = False
    sums_nothing = True

    def __init__(
        self, driver: RunDriver, current: PrivateRun, services: Services, budgets: Budgets, *, planned: int
    ) -> None:
        self._driver = driver
        self._current = current
        self._next: PrivateRun | None = None
        self._services = services
        self._budgets = budgets
        self._planned = planned
        self._verified = False  # the whole ledger, by this server, for this run

    @property
    def contract(self) -> Contract:
        """What the run promises."""
        return self._current.contract

    async def reserve(self, *, afresh: bool = False) -> None:
        """See that there is budget for the next round. Raises as ``Budgets.reserve``.

        The first time the whole ledger of the population is verified, as it is with ``afresh``.

        Raises:
            TooFewReportsError: if so few report that the next release would be in vain.
        """
        if self.at(self._driver.state.version).is_short:
            raise TooFewReportsError(self._driver.run)
        wanted = afresh or not self._verified
        await self._budgets.reserve(self._driver.run, self.contract, self._driver.state.version, afresh=wanted)
        self._verified = True

    async def forgive(self) -> None:
        """An operator has seen that too few reported, and goes on: they are counted anew, also after a restart.

        Raises:
            RecordMissingError: if the run's state is not on record.
        """
        before = self.at(self._driver.state.version)
        if not before.is_short:
            return
        after = before.forgiven()
        record = NoiseRecord(self._driver.run, after.state.version, after.to_text())
        await self._services.writer.run(noise_states.amend, record)
        self._current = after

    def give_back(self) -> None:
        """The round does not begin now: what it would cost is others' to reserve."""
        self._budgets.release(self._driver.run)

    def hold(self) -> None:
        """Reserve again what a round that a restart takes up will cost: it was let in before."""
        self._budgets.hold(self._driver.run, self.contract, self._driver.state.version)

    async def foresee(self, version: int) -> None:
        """Work out the account of a release in a reader's thread, where it keeps nobody waiting: it takes seconds.

        The writer, which asks again in the transaction that charges, finds it done; and it is the writer that refuses.
        """
        with contextlib.suppress(BudgetSpentError):
            await self._services.reader.run(ledger.check, self.contract, self._driver.run, version)

    def at(self, version: int) -> PrivateRun:
        """The run before the release of train round ``version``.

        Raises:
            CorruptDataError: if what is stored is not of that round.
        """
        if self._next is not None and self._next.state.version == version:
            self._current, self._next = self._next, None
        if self._current.state.version != version:
            raise CorruptDataError(
                "privacy.state",
                f"run {self._driver.run} has released {version} models, its noise is for release "
                f"{self._current.state.version}",
                "restore the whole data directory from one backup",
            )
        return self._current

    def _summed(self, grid: Grid, elements: int, items: Sequence[FoldItem]) -> Summed:
        """What the noise of these contributions depends on; blocks.

        Raises:
            NotFoundError, CorruptDataError: if an update cannot be read.
        """
        bound = [(item.update_id, item.weight) for item in items]
        binding = blake3(json.dumps(sorted(bound)).encode()).digest()
        norms = [] if self.contract.adaptive is None else [self._norm(item) for item in items]
        return Summed(grid, elements, binding, norms, len(items))

    def _norm(self, item: FoldItem) -> float:
        spool = self._services.spool
        with spool.committed(item.run, item.round, item.attempt, item.participant, item.digest) as upload:
            return norm_of(upload.records)

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid:
        """See ``Releases``."""
        return self.at(version).grid(total_weight, max_abs)

    def cohort_size(self, drawn: int) -> int:
        """See ``Releases``: the planned size, since the number drawn tells who is in it."""
        del drawn
        return self._planned

    def terms(self, version: int) -> PrivacyTerms:
        """See ``Releases``."""
        return self.at(version).terms

    @contextlib.contextmanager
    def released(
        self,
        version: int,
        key: SumKey,
        total: PartialSum,
        items: Sequence[FoldItem],
        states: Mapping[str, Blob],
        open_sink: OpenSink,
    ) -> Iterator[tuple[PartialSum, Settled]]:
        """See ``Releases``: the sum with its noise.

        Raises:
            NotFoundError, CorruptDataError: if an update cannot be read.
        """
        before = self.at(version)
        summed = self._summed(key.grid, key.elements, items)
        history = {name: blob for name, blob in states.items() if name in before.kept}
        with self._noised(before, total, summed, history, open_sink) as noised:
            yield noised, Settled(before.settle(summed), before.state.clip)

    def _noised(
        self, before: PrivateRun, total: PartialSum, summed: Summed, history: Mapping[str, Blob], open_sink: OpenSink
    ) -> NoisedSum:
        """The sum with its noise. What later rounds need of the noise goes to ``open_sink(name, bytes)``, sealed."""
        noise = before.noise(summed, history)
        weight = self.contract.divisor_weight
        if not noise.keeps:
            return NoisedSum(total, noise, weight)
        sink = open_sink(noise.keeps, NOISE_BYTES * noise.kept_values * summed.elements)

        def keep(piece: Integers, start: int) -> None:
            sink.write(noise.seal(piece, start).astype("<i8", copy=False).data)

        return NoisedSum(total, noise, weight, keep)

    def recorder(self, record: Release, settled: Settled | None, version: int) -> Recorder:
        """See ``Releases``: the budget is checked again. The next round goes on from what ``settled`` says."""
        if settled is None:
            return lambda connection: stored.record(connection, record)
        self._next = settled.after
        charge = ledger.charge_of(
            self.contract,
            run_id=record.charge.run_id,
            round_number=record.charge.round,
            attempt=record.charge.attempt,
            version=version,
            now=record.charge.charged_at,
            clip=settled.clip,
        )
        noise = NoiseRecord(self._driver.run, settled.after.state.version, settled.after.to_text())
        private = replace(record, charge=charge, noise=noise)

        def put(connection: Connection) -> object:
            self._budgets.require_compared(self._driver.run)
            return ledger.record(connection, private, self.contract, version)

        return put
