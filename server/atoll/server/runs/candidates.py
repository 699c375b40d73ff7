"""Makes candidates: models from a round's contributions that are durable but not released."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from atoll.server.aggregation import (
    STATE_BYTES,
    Grid,
    IterateMean,
    MergedSum,
    NewModel,
    OldModel,
    PartialSum,
    write_next_model,
)
from atoll.server.aggregation.iterates import share_of
from atoll.server.aggregation.noised import EmptySum
from atoll.server.errors import CorruptDataError, UnavailableError
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.jobs import JobSpec, averaged_tensors, fragments_of, optimiser_of, release_of
from atoll.server.rounds import Aggregate, RoundGrid, RoundKey, RoundState, RunState, UpdateRef
from atoll.server.runs.draft import Draft
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.run_privacy import PrivateOutcome, RoundSum, RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.stores import Blob, BlobWriter, StoreDamagedError, models
from atoll.wire.chunks import ElementRange
from atoll.wire.layout import Layout


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that is durable but not released.

    ``norm`` is the L2 norm of the mean update. ``optimiser_blobs`` names the server optimiser's state tensors, the mean
    of the released models, and noise that later private rounds need. ``outcome`` is None without privacy.
    """

    key: RoundKey
    blob: str
    size_bytes: int
    optimiser_blobs: tuple[tuple[str, str], ...]
    norm: float
    outcome: PrivateOutcome | None = None

    @property
    def blobs(self) -> tuple[str, ...]:
        """The names of all its blobs."""
        return (self.blob, *(blob for _, blob in self.optimiser_blobs))


class Candidates:
    """Makes the candidates of one run, and removes candidates that are not released.

    ``folded`` is called with the updates of each sum, once all of them are in it.
    """

    def __init__(
        self,
        driver: RunDriver,
        spec: JobSpec,
        layout: Layout,
        services: Services,
        privacy: RunPrivacy,
        folded: Callable[[Iterable[FoldItem]], None],
    ) -> None:
        self._driver = driver
        self._layout = layout
        self._services = services
        self._privacy = privacy
        self._folded = folded
        self._optimiser = optimiser_of(spec)
        self._averaged = averaged_tensors(spec, layout)
        self._mean_decay = None if spec.iterate_averaging is None else spec.iterate_averaging.decay
        self._fragments = fragments_of(spec, layout)
        self._rewrite = release_of(spec)
        self._sum_key: tuple[object, SumKey | None] = None, None  # every report of a round asks for it
        self._made: list[Candidate] = []  # appended in threads, also by tasks that were cancelled meanwhile

    async def make(self, effect: Aggregate) -> Candidate:
        """Make the candidate of exactly these contributions, durably. Making it again gives the same bytes.

        Raises:
            ServerError: if an update can no longer be read, or the result would not be finite.
        """
        state = self._driver.state
        latest = await self._services.reader.run(lambda connection: models.latest(connection, state.run_id))
        if latest is None or (latest.version, latest.blob) != (state.version, state.model):
            raise StoreDamagedError(f"run {state.run_id} has released model {state.version}, which is not on record")
        items = [
            (term.update.node, self.item(term.update, term.weight))
            for term in effect.contributions
            if term.update is not None
        ]
        if not items and not self._privacy.releases_empty_sums:  # an empty Poisson sample changes nothing
            return Candidate(effect.key, latest.blob, latest.size_bytes, latest.optimiser_blobs, norm=0.0)
        live = live_round(state)
        if live.grid is None:
            raise CorruptDataError("release.grid", f"round {effect.key} has no grid")
        key = self.sum_key(effect.key, live.grid)
        states = dict(latest.optimiser_blobs)
        norms = await self._services.nodes.gateways.norms(items, self.wait_until()) if self._privacy.needs_norms else {}
        async with self._total(key, items) as total:
            return await self._services.call(self._write, key, total, [item for _, item in items], norms, states)

    @contextlib.asynccontextmanager
    async def _total(self, key: SumKey, items: Sequence[tuple[str, FoldItem]]) -> AsyncIterator[PartialSum]:
        """The sum of these updates, each given with the node that received it."""
        if not items:
            yield EmptySum(key.elements, key.grid)
            return
        async with self._services.nodes.partials(key, items, self.wait_until()) as parts:
            self._folded(item for _, item in items)
            yield MergedSum(parts)

    def wait_until(self) -> float:
        """The time until which the sum waits for gateways: the round's deadline, in seconds of ``time.monotonic``."""
        return time.monotonic() + live_round(self._driver.state).deadline_at - self._services.clock()

    def _write(
        self,
        key: SumKey,
        total: PartialSum,
        items: Sequence[FoldItem],
        norms: Mapping[str, float],
        states: Mapping[str, str],
    ) -> Candidate:
        blobs, version = self._services.blobs, self._driver.state.version
        with contextlib.ExitStack() as stack:

            def open_sink(name: str, expected_bytes: int) -> BlobWriter:
                sinks[name] = stack.enter_context(blobs.create(expected_bytes=expected_bytes))
                return sinks[name]

            sinks: dict[str, BlobWriter] = {}
            old = {name: stack.enter_context(blobs.open(blob)) for name, blob in states.items()}
            model = stack.enter_context(blobs.open(self._driver.state.model))
            new_states = {
                name: open_sink(name, STATE_BYTES * self._layout.size) for name in self._optimiser.state_names
            }
            iterates = None
            if self._mean_decay is not None:
                mean_sink = open_sink(models.ITERATE_AVERAGE, self._layout.size_bytes)
                share = share_of(self._mean_decay, version + 1)
                iterates = IterateMean(old.get(models.ITERATE_AVERAGE), share, mean_sink)
            sink = stack.enter_context(blobs.create(expected_bytes=self._layout.size_bytes))
            draft = None if self._rewrite is None else Draft(self._layout)
            summed = RoundSum(version, key, total, items, norms, old, open_sink)
            released_sum, outcome = stack.enter_context(self._privacy.released(summed))
            released = write_next_model(
                self._layout,
                released_sum,
                self._optimiser,
                OldModel(model, {name: _whole(old[name]) for name in self._optimiser.state_names if name in old}),
                NewModel(draft or sink, new_states),
                self._averaged,
                self._fragment(),
                iterates,
            )
            if draft is not None and self._rewrite is not None:
                self._rewrite(version, draft.tensors, released.updates, self._privacy.noise_on_sum(version))
                sink.write(draft.content)
            manifest = sink.commit()
            written = {name: writer.commit().name for name, writer in sinks.items()}
        state_blobs = tuple(sorted({**states, **written}.items()))
        round_key = RoundKey(key.round, key.attempt)
        candidate = Candidate(
            round_key, manifest.name, manifest.size_bytes, state_blobs, released.mean_update_norm, outcome
        )
        self._made.append(candidate)
        for blob in candidate.blobs:
            self._services.leases.hold(self._driver.run, blob)
        if not all(map(blobs.exists, candidate.blobs)):  # the janitor removed a blob before it was held
            raise UnavailableError("blob.removed", "the new model's blob was removed as unused", "try again", 1.0)
        return candidate

    async def keep(self, chosen: Candidate) -> None:
        """Remove other candidates of the same round."""
        made, self._made = self._made, [chosen]
        await self.discard([one for one in made if one.key == chosen.key and one.blob != chosen.blob])

    async def discard_all(self) -> None:
        """Remove candidates that were never released."""
        made, self._made = self._made, []
        await self.discard(made)

    async def discard(self, candidates: Sequence[Candidate]) -> None:
        """Remove candidates, except blobs that kept candidates share with them."""
        made = (blob for one in self._made for blob in one.blobs)
        self._services.leases.hold_only(self._driver.run, made)
        blobs = {blob for one in candidates for blob in one.blobs}
        if blobs:
            await self._services.writer.run(lambda connection: self.set_aside(models.unnamed(connection, blobs)))
            await self._services.sweep_blobs()

    def set_aside(self, blobs: Collection[str]) -> None:
        """Set blobs aside in the transaction that found them unreferenced, before another can refer to them."""
        for blob in sorted(set(blobs) - self._services.leases.held(self._services.clock())):
            self._services.blobs.set_aside(blob)

    def item(self, update: UpdateRef, weight: int) -> FoldItem:
        """The update in the form that nodes take."""
        key = update.key
        return FoldItem(self._driver.run, key.round, key.attempt, update.participant, update.digest, weight)

    def sum_key(self, key: RoundKey, grid: RoundGrid) -> SumKey:
        """The key of the current round's sum."""
        made_of = (key, grid, live_round(self._driver.state).version)
        known, found = self._sum_key
        if found is None or known != made_of:
            part = self._fragment()
            found = SumKey(self._driver.run, key.round, key.attempt, part.size, Grid(**asdict(grid)), part.offset)
            self._sum_key = made_of, found
        return found

    def _fragment(self) -> ElementRange:
        """The elements that the current round updates."""
        return self._fragments.of_round(live_round(self._driver.state).version)


def live_round(state: RunState) -> RoundState:
    """The current round.

    Raises:
        CorruptDataError: if there is none.
    """
    if state.round is None:
        raise CorruptDataError("run.round", f"run {state.run_id} has no round in progress")
    return state.round


def _whole(blob: Blob) -> memoryview:
    return blob.read(0, blob.manifest.size_bytes)
