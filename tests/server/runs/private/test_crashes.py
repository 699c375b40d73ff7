"""A private run is interrupted at random moments (from a seed): every release is charged once, no sum gets two noises.

A killed process leaves the data directory as it is. So one run is played undisturbed, and copies of the directory are
taken right before and after its transactions and blobs. Another server opens each copy and must finish the run with the
same bits. ``--seeds 200`` plays a thousand interruptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, Engine, event

from atoll.server.errors import ServerError
from atoll.server.privacy import ledger
from atoll.server.privacy.run import PrivateRun
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.runs import pushing
from atoll.server.stores import Store, charges, event_log, models, noise_states
from atoll.server.stores.directory_blobs import DirectoryBlobStore
from tests.server.runs.federation import LAYOUT, Client, Federation, Values, job, opened

pytestmark = pytest.mark.slow

Play = Callable[[Federation, str], Awaitable[str]]
Sends = Callable[[Client, int], Values]
CUTS = 5
"""Copies of each run."""
ROUNDS = 3
NAMES = ("alice", "bob", "carol")
VARIANTS = ("adaptive", "banded", "blt", "gaussian", "tree")
LATEST = 45
"""About as many moments as a run has."""
TOML = """
[aggregation]
weighting = "uniform"
[optimiser]
name = "fedadam"
[iterate_averaging]
decay = 0.5
[privacy]
population = "people"
delta = 1e-5
noise_multiplier = 3.0
"""
CAPPED = f"max_participations = {ROUNDS}\nmin_separation = 1\n"
ADAPTIVE = "adaptive = { initial = 0.5, count_noise = 2.0 }\n"
PRIVACY = {
    "adaptive": ADAPTIVE + CAPPED,
    "banded": 'clip = 0.5\nmechanism = "banded"\n' + CAPPED,
    "blt": 'clip = 0.5\nmechanism = "blt"\n' + CAPPED,
    "gaussian": 'clip = 0.5\nmechanism = "gaussian"\n' + CAPPED,
    "tree": 'clip = 0.5\nmechanism = "tree"\n' + CAPPED,
    "poisson": ADAPTIVE,
}
WINDOW_S = 0.2
"""Report window in seconds of rounds with a random draw, which last that long."""


def toml_of(variant: str) -> bytes:
    if variant == "poisson":
        text = job(rounds=ROUNDS, size=2, quorum=0, window_s=WINDOW_S, straggler="max_attempts = 3").decode()
        cohort = 'sampler = "poisson"\nrate = 0.6\nmin_available = 3\n'
    else:
        text = job(rounds=ROUNDS, size=len(NAMES), straggler="max_attempts = 3").decode()
        cohort = 'sampler = "least_recent"\n'
    return (text.replace("[straggler]", f"{cohort}[straggler]") + TOML + PRIVACY[variant]).encode()


class Camera:
    """Copies the data directory at chosen moments, numbered as they come."""

    def __init__(self, data: Path, into: Path, moments: set[int]) -> None:
        self.data = data
        self.into = into
        self.moments = moments
        self.seen = 0
        self.taken: list[Path] = []

    def passes(self, *_: object) -> None:
        self.seen += 1
        if self.seen in self.moments:
            copy = self.into / f"cut-{self.seen}"
            for folder, _folders, names in os.walk(self.data):  # uploads that are no longer needed may go meanwhile
                place = copy / Path(folder).relative_to(self.data)
                place.mkdir(parents=True)
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copy2(Path(folder) / name, place / name)
            self.taken.append(copy)

    @contextlib.contextmanager
    def running(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A moment before each commit of the database, and one before and after each blob is made visible."""
        create = DirectoryBlobStore.create

        def watched(store: DirectoryBlobStore, *args: object, **kwargs: object) -> object:
            writer = create(store, *args, **kwargs)  # type: ignore[arg-type]
            commit = writer.commit

            def committed() -> object:
                self.passes()
                manifest = commit()
                self.passes()
                return manifest

            writer.commit = committed  # type: ignore[method-assign,assignment]
            return writer

        with monkeypatch.context() as patch:
            patch.setattr(DirectoryBlobStore, "create", watched)
            event.listen(Engine, "commit", self.passes)
            try:
                yield
            finally:
                event.remove(Engine, "commit", self.passes)


def values_of(client: Client, round_number: int) -> Values:
    seed = [*client.name.encode(), round_number]
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def never_the_same(_: Client, __: int) -> Values:
    return np.random.default_rng().normal(size=LAYOUT.size).astype(np.float32)


async def attend(client: Client, sends: Sends) -> None:
    """Train on every invitation, and ignore the outcome."""
    while True:
        task = await client.invitation()
        with contextlib.suppress(ServerError):
            await client.report(task.key, sends(client, task.key.round))


async def officiate(federation: Federation, run: str) -> None:
    """Raise the limit each time that the run has paused for lack of budget."""
    active = federation.active(run)
    while True:
        changed = active.driver.changed
        if active.driver.state.status is RunStatus.PAUSED:
            await federation.store.writer.run(limit, 1000.0)
            await federation.coordinator.resume(run)
        await changed.wait()


def limit(connection: Connection, epsilon: float) -> None:
    ledger.set_limit(connection, "people", (epsilon, 1e-5), operator="officer", now=1.0)


async def play(federation: Federation, run: str, sends: Sends = values_of) -> str:
    """All attend until the run ends; returns its last model and the mean of all."""
    return await finish(federation, run, await federation.clients(*NAMES), sends)


async def finish(federation: Federation, run: str, clients: list[Client], sends: Sends = values_of) -> str:
    """Like ``play``, with clients that have checked in."""
    attending = [asyncio.create_task(attend(client, sends)) for client in clients]
    attending.append(asyncio.create_task(officiate(federation, run)))
    try:
        ended = await federation.ended(run)
    finally:
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)
    assert ended.status == RunStatus.FINISHED, ended.reason
    newest = await federation.store.reader.run(models.latest, run)
    assert newest is not None
    assert newest.average_blob not in (None, newest.blob)
    return f"{ended.current_model} {newest.average_blob}"


def released_and_charged(connection: Connection, run: str) -> tuple[int, int, int]:
    """Train rounds released, charges, and the version of the next noise."""
    latest, noise = models.latest(connection, run), noise_states.find(connection, run)
    assert latest is not None
    assert noise is not None
    return latest.version, len(charges.listed(connection, run)), PrivateRun.from_text(noise.body).state.version


async def standing(data: Path, run: str) -> tuple[int, int, int]:
    with contextlib.closing(Store.open(data)) as store:
        return await store.reader.run(released_and_charged, run)


async def disturbed(federation: Federation, run: str) -> str:
    """Like ``play``, but the limit is lowered below the spending while the second round is open."""
    clients = await federation.clients(*NAMES)
    for client in clients:
        task = await client.invitation()
        await client.report(task.key, values_of(client, task.key.round))
    await federation.state(run, lambda state: state.version == 1 and _phase(state) is Phase.OPEN)
    await federation.store.writer.run(limit, 1e-3)
    last = await finish(federation, run, clients)
    logged = await federation.store.reader.run(lambda connection: list(event_log.replay(connection, run)))
    assert "budget_spent" in {entry.kind for entry in logged}
    return last


def _phase(state: RunState) -> Phase | None:
    return None if state.round is None else state.round.phase


@pytest.mark.system
async def test_cut_off_anywhere_it_ends_with_the_same_bits_each_release_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_seed: int
) -> None:
    await cut_off(tmp_path, monkeypatch, fault_seed, play)


@pytest.mark.system
async def test_cut_off_while_it_waits_for_budget_it_ends_with_the_same_bits_each_release_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_seed: int
) -> None:
    await cut_off(tmp_path, monkeypatch, fault_seed, disturbed)


async def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_seed: int, first: Play) -> None:
    """Play a run as ``first`` does, and finish what is left of it at each cut."""
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: b"\x07" * 32)
    toml = toml_of(VARIANTS[fault_seed % len(VARIANTS)])
    run, undisturbed, cuts = await photographed(tmp_path, monkeypatch, fault_seed, toml, first)
    for cut in cuts:
        ended = await taken_up(cut, run, play)
        assert ended in ("", undisturbed), cut


@pytest.mark.system
async def test_cut_off_anywhere_a_run_of_random_cohorts_is_charged_once_for_any_second_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_seed: int
) -> None:
    """After the interruption others may be drawn, and every member sends a different update."""
    monkeypatch.setattr(pushing, "RETURN_S", WINDOW_S)

    async def anew(federation: Federation, run: str) -> str:
        return await play(federation, run, never_the_same)

    run, _, cuts = await photographed(tmp_path, monkeypatch, fault_seed, toml_of("poisson"), anew)
    for cut in cuts:
        await taken_up(cut, run, anew)


async def photographed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_seed: int, toml: bytes, first: Play
) -> tuple[str, str, list[Path]]:
    """A run that ``first`` plays: its name, the result of ``first``, and copies of the data directory on the way."""
    draw = random.Random(f"cuts {fault_seed}")
    async with opened(tmp_path / "data") as federation:
        run = await federation.submit(toml)
        camera = Camera(tmp_path / "data", tmp_path, set(draw.sample(range(1, LATEST), CUTS)))
        with camera.running(monkeypatch):
            undisturbed = await first(federation, run)
    assert len(camera.taken) >= CUTS // 2
    return run, undisturbed, camera.taken


async def taken_up(cut: Path, run: str, then: Play) -> str:
    """Play a copy to its end, each release charged once; returns what ``then`` does, "" if the run had ended."""
    released, charged, noise = await standing(cut, run)
    assert released == charged == noise, cut
    ended = ""
    async with opened(cut) as federation:
        if federation.coordinator.active(run) is not None:
            ended = await then(federation, run)
        assert await federation.store.reader.run(ledger.flaws) == {}
    assert await standing(cut, run) == (ROUNDS, ROUNDS, ROUNDS), cut
    shutil.rmtree(cut)
    return ended
