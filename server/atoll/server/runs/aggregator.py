"""Turns the reports of a round into the next model: grid, folding, sum, candidate, charge."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from blake3 import blake3
from sqlalchemy import Connection

from atoll.server.errors import CorruptDataError
from atoll.server.ingest.node import FoldItem
from atoll.server.jobs import JobSpec
from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    ChargeAndStore,
    DropSpools,
    Effect,
    Fold,
    PrepareRound,
    Publish,
    RoundGrid,
    RoundKey,
    RoundKind,
    RoundState,
    RunState,
    UpdateRef,
    aggregate_of,
)
from atoll.server.runs.candidates import Candidate, Candidates, live_round
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.evaluators import AVERAGED_METRIC, Evaluator, Judgement, judge
from atoll.server.runs.records import metrics_of, round_record
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Also
from atoll.server.stores import Release, charges, models, runs
from atoll.wire.layout import Layout

log = logging.getLogger(__name__)


class Aggregator:
    """Turns the reports of one run's rounds into models: grid, folding, sum, candidate, charge."""

    def __init__(
        self, driver: RunDriver, spec: JobSpec, layout: Layout, services: Services, privacy: RunPrivacy
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._layout = layout
        self._services = services
        self._privacy = privacy
        self._candidates = Candidates(driver, spec, layout, services, privacy, self._note_folded)
        self._candidate: Candidate | None = None
        self._server_metrics: dict[RoundKey, Mapping[str, float]] = {}
        self._folded: dict[tuple[int, int, str], float] = {}  # until the uploads are dropped

    def grid(self, effect: PrepareRound) -> RoundGrid | None:
        """The grid of a train round; None if nothing is to be summed."""
        if effect.kind is not RoundKind.TRAIN:
            return None
        max_abs = self._spec.aggregation.max_abs
        grid = self._privacy.grid(self._driver.state.version, effect.total_weight, max_abs)
        return None if grid is None else RoundGrid(**asdict(grid))

    def due(self, effect: Fold, grid: RoundGrid) -> Sequence[FoldItem]:
        """The updates to fold now that this one has arrived; see ``NodePool.due``."""
        item = self._candidates.item(effect.update, effect.weight)
        return self._services.nodes.due(self._candidates.sum_key(effect.key, grid), effect.update.node, item)

    async def fold(self, effect: Fold, grid: RoundGrid, items: Sequence[FoldItem]) -> None:
        """Fold these updates, which became due when the effect's update arrived."""
        key = self._candidates.sum_key(effect.key, grid)
        self._note_folded(await self._services.nodes.fold(key, effect.update.node, items))

    def _note_folded(self, items: Iterable[FoldItem]) -> None:
        """Note that these updates are in the sum."""
        now = self._services.clock()
        for item in items:
            self._folded.setdefault((item.round, item.attempt, item.participant), now)

    async def aggregate(self, effect: Aggregate) -> Aggregated:
        """Make the round's result, durably: a candidate model, or the digest of an evaluation's metrics.

        Raises:
            ServerError: if an update can no longer be read, or the result would not be finite.
        """
        if effect.kind is RoundKind.EVALUATE:
            digest = _evaluation_digest(live_round(self._driver.state), self._driver.state.policy.max_weight)
        else:
            if self._privacy.releases_empty_sums and not effect.contributions:
                log.log(
                    logging.DEBUG if self._driver.state.policy.secret_draw else logging.WARNING,
                    "run %s round %s: no update arrived, so the release is only noise, and is charged; if "
                    "participants are still training, or fail, pause the run meanwhile",
                    self._driver.run,
                    effect.key,
                )
            self._candidate = await self._make(effect)
            digest = self._candidate.blob
            await self._candidates.keep(self._candidate)
        return Aggregated(effect.key, effect.total_weight, len(effect.contributions), digest)

    def can_charge(self, effect: ChargeAndStore) -> bool:
        """Whether the result to charge exists. After a restart a train round's candidate must be made again."""
        if effect.kind is RoundKind.EVALUATE:
            return True
        candidate = self._candidate
        return candidate is not None and (candidate.key, candidate.blob) == (effect.key, effect.digest)

    async def make_again(self) -> None:
        """Remake the candidate of the sum that waits for its charge; the same sum gives the same bytes.

        Raises:
            ServerError: if an update can no longer be read.
        """
        self._candidate = await self._make(aggregate_of(self._driver.state))

    async def _make(self, effect: Aggregate) -> Candidate:
        await self._privacy.precompute_charge(self._driver.state.version)
        return await self._candidates.make(effect)

    async def lost(self) -> list[UpdateRef]:
        """The unreadable updates in the sum that waits for its charge. Raises as ``unreadable``."""
        return [update for update, _ in await self.unreadable(aggregate_of(self._driver.state))]

    async def unreadable(self, effect: Aggregate) -> list[tuple[UpdateRef, str]]:
        """The contributions whose updates are no longer fully readable, each with the reason.

        Raises:
            StorageError: if the disk cannot be read; the updates may be intact.
            UnavailableError: if a gateway that holds some of them is disconnected, and may still return in time.
        """
        found = []
        for term in effect.contributions:
            if term.update is not None:
                key, update = term.update.key, term.update
                reason = await self._services.nodes.gateways.flaw(
                    update.node, self._candidates.item(update, term.weight), self._candidates.wait_until()
                )
                if reason is None:
                    reason = await self._services.call(
                        self._services.spool.flaw,
                        self._driver.run,
                        key.round,
                        key.attempt,
                        update.participant,
                        update.digest,
                    )
                if reason:
                    found.append((update, reason))
        return found

    def is_judged(self, effect: Publish) -> bool:
        """Whether an evaluator of the operator judges the released model."""
        return self._spec.evaluation.server is not None and effect.kind is RoundKind.TRAIN

    async def evaluate(self, effect: Publish) -> Judgement:
        """Have the operator's evaluator judge the released model, if the job names one."""
        name = self._spec.evaluation.server
        if name is None:
            return Judgement()
        evaluator = self._services.evaluators.get(name)
        if evaluator is None:
            return Judgement(failure=f"evaluator {name} is not installed any more")
        found = await judge(name, evaluator, self._layout, self._services.blobs, effect.digest)
        if (found.metrics or not found.failure) and self._spec.iterate_averaging is not None:
            found = await self._with_average(found, name, evaluator)
        self._server_metrics = {effect.key: found.metrics}
        return found

    async def _with_average(self, found: Judgement, name: str, evaluator: Evaluator) -> Judgement:
        """Add the judgement of the mean of the released models to that of the newest one."""
        run = self._driver.run
        newest = await self._services.reader.run(lambda connection: models.latest(connection, run))
        if newest is None or newest.average_blob is None:
            return found
        mean = await judge(name, evaluator, self._layout, self._services.blobs, newest.average_blob, AVERAGED_METRIC)
        failures = "; ".join(one.failure for one in (found, mean) if one.failure)
        return Judgement({**found.metrics, **mean.metrics}, failures)

    async def retain(self) -> None:
        """Remove models that need not be kept (never the first or best), and all but the newest optimiser states."""
        run, keep = self._driver.run, self._spec.retention.models or self._services.keep_models

        def work(connection: Connection) -> None:
            newest = models.latest(connection, run)
            if newest is None:
                return
            surplus = models.surplus_blobs(connection, run, through_version=newest.version - keep)
            old = models.of_version(connection, run, newest.version - 1)
            if old is not None and old.optimiser_blobs:
                models.forget_optimiser(connection, run, below_version=newest.version)
                surplus |= models.unnamed(connection, {blob for _, blob in old.optimiser_blobs})
            self._candidates.set_aside(surplus)

        await self._services.writer.run(work)
        await self._services.sweep_blobs()

    async def discard_candidates(self) -> None:
        """Remove candidates that were never released."""
        self._candidate = None
        await self._candidates.discard_all()

    def server_metrics(self, key: RoundKey) -> Mapping[str, float]:
        """The evaluator's metrics of the round's model; empty if there are none."""
        return self._server_metrics.get(key, {})

    async def drop(self, effect: DropSpools) -> None:
        """Drop the sums of these rounds, and remove uploads that no later sum can need."""
        run = self._driver.run
        keep = {(key.round, key.attempt, participant) for key, participant in effect.keep}
        through = (effect.through.round, effect.through.attempt)
        self._folded = {key: at for key, at in self._folded.items() if key[:2] > through or key in keep}
        await self._services.nodes.drop(run, *through)
        await self._services.nodes.drop_uploads(run, through, keep)
        await self._services.call(self._services.spool.drop_through, run, through, keep)

    async def drop_all(self) -> None:
        """Drop all sums and uploads of the run: it has ended."""
        await self._services.nodes.drop_run(self._driver.run)
        await self._services.call(self._services.spool.drop_run, self._driver.run)

    def charge(self, effect: ChargeAndStore, state: RunState) -> Also:
        """Run the statements of the transaction that makes the round ``Charged``; ``state`` is the run before it.

        Raises:
            CorruptDataError: if the candidate differs from the one that was aggregated.
        """
        run, now, version, live = self._driver.run, self._services.clock(), state.version, live_round(state)
        model, candidate = None, self._candidate if effect.kind is RoundKind.TRAIN else None
        if candidate is not None:
            if candidate.blob != effect.digest:
                raise CorruptDataError(
                    "release.digest", f"round {effect.key} gives {candidate.blob[:16]} now, {effect.digest[:16]} before"
                )
            model = models.Model(
                run_id=run,
                version=version + 1,
                round=effect.key.round,
                blob=candidate.blob,
                size_bytes=candidate.size_bytes,
                created_at=now,
                optimiser_blobs=candidate.optimiser_blobs,
            )
        charge = charges.Charge(run, effect.key.round, effect.key.attempt, charges.NO_MECHANISM, json.dumps({}), now)
        counted = [
            (term.update.key.round, term.update.key.attempt, term.participant)
            for term in aggregate_of(state).contributions
            if term.update is not None
        ]
        metrics = metrics_of(live.roster, state.policy.max_weight)
        folded_at = {key: self._folded[key] for key in counted if key in self._folded}
        record = Release(charge, round_record(run, live, metrics), (), model, counted, folded_at)
        put = self._privacy.recorder(record, None if candidate is None else candidate.outcome, version)

        def also(connection: Connection, _: tuple[Effect, ...]) -> None:
            put(connection)
            if model is not None:
                runs.set_model(connection, run, model.blob, rounds_released=version + 1)

        return also


def _evaluation_digest(live: RoundState, max_weight: int) -> str:
    """Digest of an evaluation: BLAKE3 of its metrics as canonical JSON."""
    return blake3(json.dumps(metrics_of(live.roster, max_weight), sort_keys=True).encode()).hexdigest()
