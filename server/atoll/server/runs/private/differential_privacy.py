"""Differential privacy of one run: budget, noise and charge of each release, and the state between releases."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from blake3 import blake3
from sqlalchemy import Connection

from atoll.server.aggregation import Grid, PartialSum
from atoll.server.aggregation.noised import Integers, NoisedSum
from atoll.server.errors import CorruptDataError
from atoll.server.ingest.node import FoldItem
from atoll.server.ingest.records import norm_of
from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import BudgetSpentError, TooFewReportsError
from atoll.server.privacy.mechanisms.interface import NOISE_BYTES
from atoll.server.privacy.run import PrivateRun, Summed
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.private.budgets import Budgets
from atoll.server.runs.run_privacy import PrivateOutcome, Recorder, RoundSum, RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.stores import noise_states
from atoll.server.stores import release as stored
from atoll.server.stores.noise_states import NoiseRecord
from atoll.server.stores.release import Release
from atoll.wire.privacy_terms import PrivacyTerms


class DifferentialPrivacy(RunPrivacy):
    """See ``RunPrivacy``: each round reserves budget, its sum gets noise, and the release is charged.

    Args:
        driver: the run.
        current: the run's contract and the state of its noise.
        services: stores and uploads.
        budgets: the reservations of all runs.
        planned: the job's cohort size.
    """

    is_free = False
    releases_empty_sums = True

    def __init__(
        self, driver: RunDriver, current: PrivateRun, services: Services, budgets: Budgets, *, planned: int
    ) -> None:
        self._driver = driver
        self._current = current
        self._next: PrivateRun | None = None
        self._services = services
        self._budgets = budgets
        self._planned = planned
        self._verified = False  # whether this server has verified the whole ledger for this run

    @property
    def needs_norms(self) -> bool:
        """See ``RunPrivacy``: adaptive clipping counts them."""
        return self.contract.adaptive is not None

    @property
    def contract(self) -> Contract:
        """The run's contract."""
        return self._current.contract

    async def reserve(self, *, afresh: bool = False) -> None:
        """See ``RunPrivacy``. Raises what ``Budgets.reserve`` raises.

        The first call verifies the whole ledger of the population, as ``afresh`` does.

        Raises:
            TooFewReportsError: if too few participants report for a useful release.
        """
        if self.at(self._driver.state.version).is_short:
            raise TooFewReportsError(self._driver.run)
        wanted = afresh or not self._verified
        await self._budgets.reserve(self._driver.run, self.contract, self._driver.state.version, afresh=wanted)
        self._verified = True

    async def reset_shortfall(self) -> None:
        """See ``RunPrivacy``; also holds after a restart.

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

    def release_reservation(self) -> None:
        """See ``RunPrivacy``."""
        self._budgets.release(self._driver.run)

    def hold(self) -> None:
        """See ``RunPrivacy``; no check, since the round passed it before the restart."""
        self._budgets.hold(self._driver.run, self.contract, self._driver.state.version)

    async def precompute_charge(self, version: int) -> None:
        """See ``RunPrivacy``: computed in a reader's thread, since it takes seconds and would block the writer.

        The transaction that charges checks the budget again and decides.
        """
        with contextlib.suppress(BudgetSpentError):
            await self._services.reader.run(ledger.check, self.contract, self._driver.run, version)

    def at(self, version: int) -> PrivateRun:
        """The state of the run before it releases model ``version + 1``.

        Raises:
            CorruptDataError: if the stored state belongs to another release.
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

    def _noise_basis(self, summed: RoundSum) -> Summed:
        """Inputs of the noise on this sum; blocks.

        Raises:
            NotFoundError, CorruptDataError: if an update cannot be read.
        """
        items = summed.items
        binding = blake3(json.dumps(sorted((item.update_id, item.weight) for item in items)).encode()).digest()
        norms = [self._norm(item, summed.norms) for item in items] if self.needs_norms else []
        return Summed(summed.key.grid, summed.key.elements, binding, norms, len(items))

    def _norm(self, item: FoldItem, known: Mapping[str, float]) -> float:
        if item.update_id in known:
            return known[item.update_id]
        spool = self._services.spool
        with spool.committed(item.run, item.round, item.attempt, item.participant, item.digest) as upload:
            return norm_of(upload.records)

    def grid(self, version: int, total_weight: int, max_abs: float) -> Grid:
        """See ``RunPrivacy``."""
        return self.at(version).grid(total_weight, max_abs)

    def cohort_size(self, drawn: int) -> int:
        """See ``RunPrivacy``: the planned size, since the drawn size would reveal who is in the cohort."""
        del drawn
        return self._planned

    def terms(self, version: int) -> PrivacyTerms:
        """See ``RunPrivacy``."""
        return self.at(version).terms

    def noise_on_sum(self, version: int) -> float:
        """See ``RunPrivacy``."""
        return self.at(version).noise_on_sum

    @contextlib.contextmanager
    def released(self, summed: RoundSum) -> Iterator[tuple[PartialSum, PrivateOutcome]]:
        """See ``RunPrivacy``: the sum with its noise.

        Raises:
            NotFoundError, CorruptDataError: if an update cannot be read.
        """
        before, basis = self.at(summed.version), self._noise_basis(summed)
        with self._noised(before, summed, basis) as noised:
            yield noised, PrivateOutcome(before.after_release(basis), before.state.clip)

    def _noised(self, before: PrivateRun, summed: RoundSum, basis: Summed) -> NoisedSum:
        """The sum with its noise. Noise that later rounds need is written, sealed, to a blob."""
        noise = before.noise(basis, {name: blob for name, blob in summed.states.items() if name in before.kept})
        weight = self.contract.divisor_weight
        if not noise.keeps:
            return NoisedSum(summed.total, noise, weight)
        sink = summed.open_sink(noise.keeps, NOISE_BYTES * noise.kept_values * basis.elements)

        def keep(piece: Integers, start: int) -> None:
            sink.write(noise.seal(piece, start).astype("<i8", copy=False).data)

        return NoisedSum(summed.total, noise, weight, keep)

    def recorder(self, record: Release, outcome: PrivateOutcome | None, version: int) -> Recorder:
        """See ``RunPrivacy``: checks the budget again. The next round continues from ``outcome``."""
        if outcome is None:
            return lambda connection: stored.record(connection, record)
        self._next = outcome.after
        charge = ledger.charge_of(
            self.contract,
            run_id=record.charge.run_id,
            round_number=record.charge.round,
            attempt=record.charge.attempt,
            version=version,
            now=record.charge.charged_at,
            clip=outcome.clip,
        )
        noise = NoiseRecord(self._driver.run, outcome.after.state.version, outcome.after.to_text())
        private = replace(record, charge=charge, noise=noise)

        def put(connection: Connection) -> object:
            self._budgets.require_compared(self._driver.run)
            return ledger.record(connection, private, self.contract, version)

        return put
