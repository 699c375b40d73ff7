"""Private runs of a restored data directory: nothing is released before an operator allows it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import pytest

from atoll.server.aggregation import warm
from atoll.server.backup import back_up, restore
from atoll.server.backup.restore import RESTORED_FILE
from atoll.server.rounds import Phase, RunState, RunStatus
from atoll.server.stores import charges, runs
from tests.server.rpc.world import World
from tests.server.runs.federation import Federation, job, opened
from tests.server.runs.private.test_differential_privacy import LOUD, capped, limit_to, private_job, report

pytestmark = pytest.mark.slow


async def paused(federation: Federation, run: str) -> str:
    """Why it has paused."""
    await federation.state(run, lambda state: state.status is RunStatus.PAUSED)
    return (await federation.store.reader.run(runs.get, run)).reason


def is_open(state: RunState) -> bool:
    return state.round is not None and state.round.phase is Phase.OPEN


async def test_the_next_round_waits_for_an_operator_also_after_another_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as federation:
        run = await federation.submit(capped(2, most=2))  # no participant is connected: it waits for its draw
    later = time.time()
    for _ in range(2):
        async with opened(tmp_path, restored_at=later) as federation:
            await federation.clients("alice")
            why = await paused(federation, run)
            assert why.startswith(f"the privacy budget of run {run} is not known: its ledger was restored")
            assert f"`atoll run resume {run}`" in why
    async with opened(tmp_path, restored_at=later) as federation:
        await federation.clients("alice")
        await federation.coordinator.resume(run)
        await federation.state(run, is_open)
    async with opened(tmp_path, restored_at=later) as federation:  # it was resumed since
        (alice,) = await federation.clients("alice")
        for _ in range(2):
            await report(alice, 1)
        assert (await federation.ended(run)).status == RunStatus.FINISHED


async def test_a_run_that_waits_for_budget_is_backed_up_and_releases_its_round_without_what_is_lost(
    tmp_path: Path,
) -> None:
    """No backup has updates in it. An empty cohort loses none: to draw again would reveal that a member was drawn."""
    async with opened(tmp_path / "data") as federation:
        clients = await federation.clients("alice", "bob")
        run = await federation.submit(private_job(noise=LOUD).replace(b"max_attempts = 1", b"max_attempts = 2"))
        await federation.state(run, is_open)
        await federation.store.writer.run(limit_to, 1e-3)
        for client in clients:
            await report(client, 1)
        await federation.deadline(run)
        assert "has no room for" in await paused(federation, run)
        await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy", now=time.time())
    restore(tmp_path / "copy", tmp_path / "restored", now=time.time())
    async with opened(tmp_path / "restored", restored_at=time.time()) as federation:
        await paused(federation, run)
        await federation.store.writer.run(limit_to, 1000.0)
        federation.submitted[run] = federation.active(run)
        await federation.coordinator.resume(run)
        ended = await federation.ended(run)
        assert ended.status == RunStatus.FINISHED
        assert np.all(federation.model(ended.current_model) != 0)  # noise alone, as if none had reported
        assert [one.attempt for one in await federation.store.reader.run(charges.listed, run)] == [0]
        (only,) = await federation.rounds(run)
        assert only.phase == "released"


async def test_a_round_that_was_open_is_not_charged_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as federation:
        await federation.clients("alice")
        run = await federation.submit(capped(1, most=1))
        await federation.state(run, is_open)
    async with opened(tmp_path, restored_at=time.time()) as federation:
        (alice,) = await federation.clients("alice")
        await report(alice, 1)
        assert "is not known: its ledger was restored" in await paused(federation, run)
        assert await federation.store.reader.run(charges.listed, run) == ()
        ended = asyncio.create_task(federation.ended(run))
        await asyncio.sleep(0)  # it has begun to look
        await federation.coordinator.resume(run)
        assert (await ended).status == RunStatus.FINISHED
        assert len(await federation.store.reader.run(charges.listed, run)) == 1


async def test_runs_without_privacy_and_those_submitted_since_go_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as federation:
        plain = await federation.submit(job(size=1))
    async with opened(tmp_path, restored_at=time.time()) as federation:
        clients = await federation.clients("alice")
        private = await federation.submit(capped(1, most=1))
        await report(clients[0], 1)
        assert (await federation.ended(plain)).status == RunStatus.FINISHED
        await federation.state(private, is_open)


async def test_a_server_reads_that_its_directory_was_restored(tmp_path: Path) -> None:
    warm()
    async with World(tmp_path / "data") as world:
        run = await world.submit(capped(1, most=1))
    note = {"made_at": time.time() - 60, "restored_at": time.time()}
    (tmp_path / "data" / RESTORED_FILE).write_text(json.dumps(note))
    async with World(tmp_path / "data") as world:
        progress = await world.until(run, "paused")
        assert "its ledger was restored from a backup on" in progress.summary.reason
