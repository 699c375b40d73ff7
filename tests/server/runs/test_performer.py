import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from atoll.server.aggregation import write_next_model
from atoll.server.disk.recycling import FreeFiles
from atoll.server.errors import NotFoundError, ServerError, StorageError, UnavailableError
from atoll.server.ingest import node_pool
from atoll.server.ingest.coordinator_api import Disposition
from atoll.server.ingest.gateway_nodes import GATEWAY
from atoll.server.ingest.local_node import LocalNode
from atoll.server.ingest.node import FoldItem, IngestNode
from atoll.server.ingest.small_update_files import WHOLE
from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    CohortDrawn,
    DrawCohort,
    Effect,
    Fold,
    Phase,
    Rejected,
    RoundGrid,
    RoundKey,
    RoundKind,
    RunState,
)
from atoll.server.runs import candidates, driver, effect_tasks, sum_effects
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.draw_effects import DrawEffects
from atoll.server.runs.drawing import CohortPool
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import EffectTasks
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.pushing import Pusher
from atoll.server.runs.session import Session
from atoll.server.runs.sessions import ProjectSessions
from atoll.server.runs.stepping import Entry, Work
from atoll.server.stores import DirectoryBlobStore, RecordConflictError, reports
from atoll.server.stores import release as releases
from atoll.wire.encoding import Encoding
from tests.patience import WAIT_S, until
from tests.server.ingest.uploads import flip
from tests.server.runs import plugins
from tests.server.runs.conftest import Timers
from tests.server.runs.federation import Client, Federation, job, opened, update_values

FIRST = RoundKey(0, 0)
QUIET = "final = false\nbefore_training = false"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_tasks, "_FIRST_RETRY_S", 0.01)


@pytest.fixture
def nothing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is stored in the transaction of the event that caused its effect."""

    def later(driver: RunDriver, effect: Effect, _: RunState) -> Work:
        return partial(driver._begin, effect)

    monkeypatch.setattr(RunDriver, "_perform", later)


async def play_round(*clients: Client) -> None:
    """Each client answers its next invitation with its own update."""
    tasks = [await client.next("participate") for client in clients]
    await asyncio.gather(*(client.report(tasks[at].key, update_values(at)) for at, client in enumerate(clients)))


def mean_of(*seeds: int) -> Any:
    return pytest.approx(np.mean([update_values(seed).astype(np.float64) for seed in seeds], axis=0), abs=1e-6)


def failing(times: int, error: Exception, then: Callable[..., Any]) -> Callable[..., Any]:
    """An async method that fails this many times."""
    left = [times]

    async def method(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return await then(*args, **kwargs)

    return method


OUTAGE = UnavailableError("node.none", "no ingest node is running", retry_after_s=1.0)
DISK_FULL = StorageError("store.unavailable", "disk full", retry_after_s=1.0)


class TestPlay:
    async def test_a_run_is_played_to_its_end(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(rounds=3, size=2))
        for _ in range(3):
            await play_round(alice, bob)
        row = await federation.ended(run)
        assert (row.status, row.rounds_released, row.reason) == ("finished", 3, "all rounds are done")
        expected = 3 * (update_values(0).astype(np.float64) + update_values(1)) / 2
        assert federation.model(row.current_model) == pytest.approx(expected, abs=1e-6)
        assert [one.phase for one in await federation.rounds(run)] == ["released"] * 3

    async def test_an_ended_run_leaves_nothing_behind(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        tasks = federation.active(run).performer._tasks
        await play_round(alice, bob)
        await federation.ended(run)
        assert federation.coordinator.active(run) is None
        assert federation.services.spool.runs() == []
        assert federation.node._sums == {}
        await asyncio.sleep(0)
        assert (tasks._tasks, tasks._timers) == ({}, {})

    async def test_an_evaluation_has_metrics_and_no_model(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, evaluation="final = true\nbefore_training = false"))
        await play_round(alice, bob)
        for client, accuracy, weight in ((alice, 0.5, 9), (bob, 0.9, 3)):
            task = await client.next("participate")
            await client.evaluate(task.key, weight, accuracy=accuracy)
        row = await federation.ended(run)
        _, evaluated = await federation.rounds(run)
        assert dict(evaluated.metrics) == {"eval/accuracy": pytest.approx(0.6), "eval/examples": 12.0}
        assert row.rounds_released == 1

    async def test_an_empty_poisson_sample_releases_the_model_as_it_is(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def empty_cohort(_: object, effect: DrawCohort, *__: object) -> CohortDrawn:
            return CohortDrawn(effect.key, (), 1, "poisson", 1)

        monkeypatch.setattr("atoll.server.runs.drawing.cohort_from", empty_cohort)
        await federation.clients("alice")
        text = job(rounds=2, quorum=0).replace(b"quorum = 0", b'quorum = 0\nsampler = "poisson"')
        row = await federation.ended(await federation.submit(text))
        assert (row.status, row.rounds_released) == ("finished", 2)
        assert row.current_model == row.initial_model

    async def test_a_missed_quorum_is_tried_again_and_then_fails_the_run(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job(straggler="max_attempts = 2"))
        for attempt in range(2):
            task = await alice.next("participate")
            assert task.key.attempt == attempt
            await alice.reply(task.key, "declined", "no power")
        row = await federation.ended(run)
        assert row.status == "failed"
        assert "abandoned 2 times" in row.reason
        assert [one.phase for one in await federation.rounds(run)] == ["abandoned", "abandoned"]
        assert await federation.members(run, 0, 1) == {alice.name: ("declined", "no power")}

    async def test_the_deadline_ends_a_round(self, federation: Federation, timers: Timers) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1, window_s=3600.0))
        task = await alice.next("participate")
        assert task.remaining_s <= 3600.0
        await bob.next("participate")
        await alice.report(task.key, update_values(1))
        window_s, passed = timers["deadline"]
        passed()
        assert 3600.0 - WAIT_S < window_s <= 3600.0
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(1)
        assert (await federation.members(run))[bob.name] == ("timed_out", "the deadline has passed")
        assert (await bob.next("stop")).key == task.key


async def test_each_effect_has_a_handler(federation: Federation) -> None:
    run = await federation.submit(job())
    assert set(federation.active(run).performer._handlers) == set(get_args(Effect))


class TestDraws:
    @pytest.fixture
    def scans(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The number of participants that each look at all of them found."""
        found: list[int] = []
        everyone = ProjectSessions.all

        def counted(sessions: ProjectSessions) -> list[Session]:
            found.append(len(sessions))
            return everyone(sessions)

        monkeypatch.setattr(ProjectSessions, "all", counted)
        return found

    async def test_a_draw_at_once_looks_at_all_participants_once(
        self, federation: Federation, scans: list[int]
    ) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, rounds=2))
        await play_round(alice, bob)
        await play_round(alice, bob)
        await federation.ended(run)
        assert scans == [2, 2]

    async def test_a_draw_that_waits_looks_at_all_of_them_three_times(
        self, federation: Federation, scans: list[int]
    ) -> None:
        """Before its event is stored, as the wait begins, and for the draw itself; changes meanwhile are counted."""
        clients = await federation.clients("alice", "bob")
        first = await federation.submit(job(size=2))
        tasks = [await client.next("participate") for client in clients]
        assert scans == [2]
        second = await federation.submit(job(size=2))
        await until(lambda: scans == [2, 2, 2])
        await federation.clients("carol")
        await asyncio.gather(*(clients[at].report(tasks[at].key, update_values(at)) for at in (0, 1)))
        await federation.ended(first)
        await federation.state(second, lambda state: state.round is not None and state.round.phase is Phase.OPEN)
        assert scans == [2, 2, 2, 3]

    async def test_a_draw_that_is_replaced_before_its_answer_is_posted_gives_its_members_back(
        self, federation: Federation
    ) -> None:
        """The task that would post it is cancelled before it begins, so it cannot release them."""
        run = await federation.submit(job(size=2))
        performer, pool = federation.active(run).performer, federation.coordinator._starter.pool_of("default")
        await performer._tasks.close()  # the engine's own draw, which waits for participants
        alice, bob = await federation.clients("alice", "bob")
        performer.begin(DrawCohort(FIRST, RoundKind.TRAIN, invited=2, needed=1, excluded=(), planned_round=0))
        assert pool._taken("another run") == {alice.name, bob.name}
        bob.leave()
        performer.begin(
            DrawCohort(FIRST, RoundKind.TRAIN, invited=2, needed=1, excluded=(alice.name,), planned_round=0)
        )
        assert pool._taken("another run") == set()
        other = await federation.submit(job(size=1))
        assert (await alice.next("participate")).key.run == other


class TestTransactions:
    async def test_a_round_is_summed_charged_and_followed_by_the_next_in_one(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each report also has or shares a transaction: durable storage limits the rate of small rounds."""
        transactions: list[list[str]] = []
        append = SqlJournal.append

        async def watched(journal: SqlJournal, entry: Entry) -> None:
            transactions.append([played.event.kind for played in entry.logged])
            await append(journal, entry)

        monkeypatch.setattr(SqlJournal, "append", watched)
        clients = await federation.clients("alice", "bob")
        run = await federation.submit(job(rounds=3, size=2))
        for _ in range(3):
            await play_round(*clients)
        await federation.ended(run)
        opening, closing = ["cohort_drawn", "round_prepared"], ["aggregated", "charged", "published"]
        others = [kinds for kinds in transactions if set(kinds) != {"reported"}]
        assert others == [["started", *opening], *[[*closing, *opening]] * 2, closing]
        assert len(transactions) - len(others) <= 6

    async def test_an_acceptance_has_none_of_its_own(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "PATIENCE_S", WAIT_S)
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        accepted = asyncio.create_task(alice.reply(task.key, "accepted"))
        await asyncio.sleep(0)
        await alice.report(task.key, update_values(0))
        await asyncio.wait_for(accepted, WAIT_S / 2)
        await federation.ended(run)


class TestSums:
    async def test_an_update_that_rots_before_it_is_folded_is_left_out(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, fold = threading.Event(), IngestNode.fold

        def held(node: IngestNode, *args: Any) -> None:
            assert gate.wait(WAIT_S)
            fold(node, *args)

        monkeypatch.setattr(node_pool, "SMALL_ELEMENTS", 0)
        monkeypatch.setattr(IngestNode, "fold", held)
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}/*/*.data")), 5)
        await bob.report(task.key, update_values(2))
        gate.set()
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(2)
        status, detail = (await federation.members(run))[alice.name]
        assert status == "rejected"
        assert "does not match its checksum" in detail
        assert str(federation.services.spool.root) not in detail

    async def test_the_row_of_a_report_whose_update_is_lost_does_not_say_that_it_counts(
        self, federation: Federation
    ) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        digest = await asyncio.to_thread(alice.spool, task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}/*/*.data")), 5)
        assert (await alice.claim(task.key, digest)).disposition is Disposition.COUNTED
        await bob.report(task.key, update_values(2))
        await federation.ended(run)
        found = await federation.store.reader.run(lambda connection: reports.of_attempt(connection, run, 0, 0))
        assert {row.participant: (row.disposition, row.counted) for row in found} == {
            alice.name: ("dropped", False),
            bob.name: ("counted", True),
        }

    @pytest.mark.parametrize("together", [1, 2, 64])
    async def test_a_small_update_that_rots_is_left_out_by_the_sum(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, together: int
    ) -> None:
        """Whether it would be folded alone, with another, or with the sum."""
        monkeypatch.setattr(node_pool, "TOGETHER", together)
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        digest = await asyncio.to_thread(alice.spool_small, task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}.0{WHOLE}")), -1)
        assert (await alice.claim(task.key, digest)).disposition is Disposition.COUNTED
        await bob.claim(task.key, await asyncio.to_thread(bob.spool_small, task.key, update_values(2)))
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(2)
        status, detail = (await federation.members(run))[alice.name]
        assert status == "rejected"
        assert "does not match its checksum" in detail
        found = await federation.store.reader.run(lambda connection: reports.of_attempt(connection, run, 0, 0))
        assert {row.participant: row.disposition for row in found} == {alice.name: "dropped", bob.name: "counted"}

    async def test_a_small_update_that_rots_below_the_quorum_is_a_round_to_try_again(
        self, federation: Federation
    ) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        digest = await asyncio.to_thread(alice.spool_small, task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}.0{WHOLE}")), -1)
        await alice.claim(task.key, digest)
        again = await alice.next("participate")
        assert (again.key.round, again.key.attempt) == (0, 1)
        await alice.claim(again.key, await asyncio.to_thread(alice.spool_small, again.key, update_values(2)))
        assert federation.model((await federation.ended(run)).current_model) == mean_of(2)

    @pytest.mark.parametrize(("together", "folded_at"), [(64, [300.0] * 3), (2, [200.0, 200.0, 300.0])])
    async def test_the_row_of_a_small_update_says_when_it_was_added_to_the_sum(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, folded_at: list[float]
    ) -> None:
        monkeypatch.setattr(node_pool, "TOGETHER", together)
        now, settled = [0.0], asyncio.Queue[RoundKey]()
        due, fold = Aggregator.due, Aggregator.fold

        def watched_due(aggregator: Aggregator, effect: Fold, grid: RoundGrid) -> Sequence[FoldItem]:
            found = due(aggregator, effect, grid)
            if not found:
                settled.put_nowait(effect.key)
            return found

        async def watched(aggregator: Aggregator, effect: Fold, grid: RoundGrid, items: Sequence[FoldItem]) -> None:
            await fold(aggregator, effect, grid, items)
            settled.put_nowait(effect.key)

        monkeypatch.setattr(Aggregator, "due", watched_due)
        monkeypatch.setattr(Aggregator, "fold", watched)
        async with opened(tmp_path, clock=lambda: now[0]) as federation:
            clients = await federation.clients("alice", "bob", "carol")
            run = await federation.submit(job(size=3))
            for at, client in enumerate(clients):
                now[0] = 100.0 * (at + 1)
                await client.report((await client.next("participate")).key, update_values(at))
                await asyncio.wait_for(settled.get(), WAIT_S)
            await federation.ended(run)
            found = await federation.store.reader.run(lambda connection: reports.of_attempt(connection, run, 0, 0))
        assert sorted(row.received_at for row in found) == [100.0, 200.0, 300.0]
        assert sorted(row.folded_at or 0.0 for row in found) == folded_at

    async def test_an_update_that_turns_out_damaged_in_the_sum_is_left_out(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No node could fold until the round closed; the sum itself finds the damage."""
        monkeypatch.setattr(LocalNode, "fold", failing(99, OUTAGE, LocalNode.fold))
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}/*/*.data")), 5)
        await bob.report(task.key, update_values(2))
        row = await federation.ended(run)
        assert row.status == "finished"
        assert federation.model(row.current_model) == mean_of(2)
        assert (await federation.members(run))[alice.name][0] == "rejected"

    async def test_a_disk_that_is_gone_for_a_while_costs_no_update(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Neither the folds nor the sum may treat unreachable updates as lost."""
        waiting, root, fold = asyncio.Event(), federation.services.spool.root, LocalNode.fold
        monkeypatch.setattr(LocalNode, "fold", failing(99, OUTAGE, fold))
        trouble = EffectTasks.note_trouble

        def note(tasks: EffectTasks, what: str, why: str) -> None:
            if what == "aggregation" and "cannot be reached" in why:
                waiting.set()
            trouble(tasks, what, why)

        monkeypatch.setattr(EffectTasks, "note_trouble", note)
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        tasks = [await client.next("participate") for client in (alice, bob)]
        await alice.report(tasks[0].key, update_values(0))
        digest = await asyncio.to_thread(bob.spool, tasks[1].key, update_values(1))
        root.rename(tmp_path / "away")
        await bob.claim(tasks[1].key, digest)
        await asyncio.wait_for(waiting.wait(), WAIT_S)
        (tmp_path / "away").rename(root)
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(0, 1)

    async def test_the_look_for_damage_takes_no_outage_for_it(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalNode, "fold", failing(99, OUTAGE, LocalNode.fold))
        monkeypatch.setattr(Aggregator, "unreadable", failing(2, DISK_FULL, Aggregator.unreadable))
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}/*/*.data")), 5)
        await bob.report(task.key, update_values(2))
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(2)
        assert (await federation.members(run))[alice.name][0] == "rejected"

    async def test_damage_below_the_quorum_is_a_round_to_try_again(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        digest = alice.spool(task.key, update_values(1))
        flip(next(federation.services.spool.root.glob(f"{run}/0.0/{alice.name}/*/*.data")), 5)
        await alice.claim(task.key, digest)
        again = await alice.next("participate")
        assert (again.key.round, again.key.attempt) == (0, 1)
        await alice.report(again.key, update_values(2))
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(2)

    async def test_an_update_whose_node_is_gone_still_counts(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalNode, "fold", failing(99, OUTAGE, LocalNode.fold))
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        await play_round(alice, bob)
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(0, 1)

    async def test_folds_leave_threads_for_the_chunks_that_come_in(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many report at once, only one may wait for the sum's lock in a thread."""
        gate, most, now = threading.Event(), [0], [0]
        fold = IngestNode.fold

        def counted(node: IngestNode, *args: Any) -> None:
            now[0] += 1
            most[0] = max(most[0], now[0])
            assert gate.wait(WAIT_S)
            fold(node, *args)
            now[0] -= 1

        monkeypatch.setattr(node_pool, "SMALL_ELEMENTS", 0)
        monkeypatch.setattr(IngestNode, "fold", counted)
        clients = await federation.clients(*"abcdef")
        run = await federation.submit(job(size=6))
        await play_round(*clients)
        gate.set()
        assert (await federation.ended(run)).status == "finished"
        assert most == [1]

    async def test_a_sum_is_not_read_while_something_is_still_folded_into_it(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is read without a lock."""
        folding, gate, reading = threading.Event(), threading.Event(), threading.Event()
        fold = IngestNode.fold

        def held(node: IngestNode, *args: Any) -> None:
            folding.set()
            assert gate.wait(WAIT_S)
            fold(node, *args)

        def read(*args: Any) -> Any:
            reading.set()
            return write_next_model(*args)

        monkeypatch.setattr(node_pool, "SMALL_ELEMENTS", 0)
        monkeypatch.setattr(IngestNode, "fold", held)
        monkeypatch.setattr(candidates, "write_next_model", read)
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        assert await asyncio.to_thread(folding.wait, WAIT_S)
        assert not await asyncio.to_thread(reading.wait, 0.1)
        gate.set()
        row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(0)

    async def test_a_sum_that_is_asked_for_again_waits_for_the_first(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the sum is being read, one of its updates is refused: the first reading must not see the second sum."""
        entered, gate = threading.Event(), threading.Event()
        sets: list[int] = []

        def held(layout: Any, total: Any, *args: Any) -> Any:
            entered.set()
            assert gate.wait(WAIT_S)
            sets.append(len(total.updates))
            return write_next_model(layout, total, *args)

        monkeypatch.setattr(candidates, "write_next_model", held)
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        await bob.report(task.key, update_values(2))
        assert await asyncio.to_thread(entered.wait, WAIT_S)
        await federation.active(run).driver.post(Rejected(FIRST, bob.name, "found out"))
        gate.set()
        row = await federation.ended(run)
        assert sets == [2, 1]
        assert federation.model(row.current_model) == mean_of(1)
        assert federation.blobs() == {row.initial_model, row.current_model}


class TestOutages:
    @pytest.mark.parametrize("method", ["aggregate", "make_again"])
    @pytest.mark.parametrize("error", [OUTAGE, DISK_FULL])
    async def test_what_may_pass_is_waited_for(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, method: str, error: ServerError
    ) -> None:
        monkeypatch.setattr(Aggregator, "can_charge", lambda *_: False)
        monkeypatch.setattr(Aggregator, method, failing(3, error, getattr(Aggregator, method)))
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        assert (await federation.ended(run)).status == "finished"

    @pytest.mark.parametrize(
        ("failures", "gateway", "status"),
        [
            pytest.param(sum_effects.MAX_SUMS - 1, "", "finished", id="an aggregator's, for a while"),
            pytest.param(99, "", "failed", id="an aggregator's"),
            pytest.param(1, GATEWAY, "failed", id="the server's"),
        ],
    )
    async def test_a_sum_without_an_update_that_can_be_read_is_tried_again(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, failures: int, gateway: str, status: str
    ) -> None:
        """As when a process on a copy of an aggregator's directory is asked, and then the aggregator itself."""
        monkeypatch.setattr(sum_effects, "SUM_AGAIN_S", 0.0)
        monkeypatch.setattr(sum_effects, "GATEWAY", gateway)  # "": every node counts as an aggregator's
        gone = NotFoundError("spool.missing", "the stored update is gone")
        monkeypatch.setattr(Aggregator, "aggregate", failing(failures, gone, Aggregator.aggregate))
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        await play_round(alice, bob)
        row = await federation.ended(run)
        assert row.status == status
        assert (row.status == "failed") == ("the stored update is gone" in row.reason)
        counted = {found for found, _ in (await federation.members(run)).values()}
        assert counted == ({"reported"} if status == "finished" else {"stopped"})

    async def test_what_does_not_pass_fails_the_run(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Aggregator, "aggregate", failing(99, OUTAGE, Aggregator.aggregate))
        monkeypatch.setattr(EffectTasks.retrying, "__defaults__", (0.0,))
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        row = await federation.ended(run)
        assert (row.status, row.reason) == ("failed", "aggregate of round 1: no ingest node is running")

    async def test_the_disk_is_waited_for_without_end_and_seen(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fails, aggregate = asyncio.Event(), Aggregator.aggregate
        fails.set()

        async def while_it_fails(aggregator: Aggregator, effect: Aggregate) -> Aggregated:
            if fails.is_set():
                raise DISK_FULL
            return await aggregate(aggregator, effect)

        monkeypatch.setattr(Aggregator, "aggregate", while_it_fails)
        monkeypatch.setattr(EffectTasks.retrying, "__defaults__", (0.0,))
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        performer = federation.active(run).performer
        await federation.state(run, lambda _: performer.trouble == "aggregation waits: disk full")
        fails.clear()
        assert (await federation.ended(run)).status == "finished"

    async def test_a_run_that_no_connected_participant_can_serve_says_why_until_one_connects(
        self, federation: Federation, caplog: pytest.LogCaptureFixture
    ) -> None:
        bob = await federation.client("bob")
        await bob.check_in(encodings=[Encoding.FLOAT32])
        run = await federation.submit(job().replace(b"[straggler]", b'[aggregation]\nencoding = "int8"\n[straggler]'))
        performer = federation.active(run).performer
        await federation.state(run, lambda _: "1 of 1 participants connected cannot send int8" in performer.trouble)
        assert "cannot send int8_block" in caplog.text
        (alice,) = await federation.clients("alice")
        await play_round(alice)
        assert (await federation.ended(run)).status == "finished"
        assert performer.trouble == ""

    async def test_a_disk_that_will_not_be_swept_costs_time_and_no_run(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is swept after a sum, to remove unneeded candidates."""
        left, give = [3], FreeFiles.give

        def refused(free: FreeFiles, path: Path) -> None:
            if left[0]:
                left[0] -= 1
                raise PermissionError(13, "Permission denied", str(path))
            give(free, path)

        async def sweeps(aggregator: Aggregator, effect: Aggregate) -> Aggregated:
            done = await aggregate(aggregator, effect)
            if left[0]:
                with federation.store.blobs.create() as writer:
                    writer.write(b"another candidate")
                    spare = writer.commit().name
                federation.store.blobs.set_aside(spare)
                federation.store.blobs.sweep()
            return done

        aggregate = Aggregator.aggregate
        monkeypatch.setattr(FreeFiles, "give", refused)
        monkeypatch.setattr(Aggregator, "aggregate", sweeps)
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        assert (await federation.ended(run)).status == "finished"
        assert left == [0]

    async def test_an_answer_is_posted_until_it_is_stored(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = federation.coordinator._journal
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        monkeypatch.setattr(journal, "append", failing(3, DISK_FULL, journal.append))
        assert (await federation.ended(run)).status == "finished"


class TestCrashes:
    @pytest.mark.parametrize(
        ("place", "method", "job_name"),
        [
            (CohortPool, "draw", "draw"),
            (DrawEffects, "_prepared", "prepare"),
            (Aggregator, "grid", "prepare"),
            (Aggregator, "aggregate", "aggregate"),
            (Aggregator, "charge", "charge"),
            (Aggregator, "is_judged", "publish"),
            (Pusher, "invite_all", "Invite"),
            (Pusher, "deadline", "StartDeadline"),
        ],
    )
    @pytest.mark.usefixtures("nothing_at_once")
    async def test_a_bug_fails_the_run_with_its_reason(
        self,
        federation: Federation,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        place: type,
        method: str,
        job_name: str,
    ) -> None:
        def crash(*_: object) -> None:
            raise KeyError("bug")

        clients = await federation.clients("alice", "bob")
        with caplog.at_level(logging.CRITICAL):
            run = await federation.submit(job(size=2))
            if job_name in {"aggregate", "charge", "publish"}:
                monkeypatch.setattr(place, method, crash)
                await play_round(*clients)
            else:
                await federation.coordinator.cancel(run, "only to learn the moment")
                monkeypatch.setattr(place, method, crash)
                run = await federation.submit(job(size=2))
            row = await federation.ended(run)
        assert row.status == "failed"
        assert row.reason == f"{job_name} of round 1: unexpected KeyError; the server's log has more"

    async def test_members_see_no_path_of_the_server(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def denied(*_: object) -> None:
            raise PermissionError(13, "Permission denied", "/srv/atoll/secret")

        monkeypatch.setattr(Pusher, "deadline", denied)
        (alice,) = await federation.clients("alice")
        with caplog.at_level(logging.ERROR):
            row = await federation.ended(await federation.submit(job()))
        await alice.next("participate")
        stop = await alice.next("stop")
        assert "unexpected PermissionError" in stop.reason
        assert "/srv/atoll" not in f"{stop.reason} {row.reason}"
        assert "/srv/atoll/secret" in caplog.text

    async def test_a_failing_fold_is_logged_and_the_sum_is_right(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(node_pool, "SMALL_ELEMENTS", 0)  # small ones wait for the sum
        monkeypatch.setattr(Aggregator, "fold", failing(99, KeyError("bug"), Aggregator.fold))
        clients = await federation.clients("alice", "bob")
        with caplog.at_level(logging.ERROR):
            run = await federation.submit(job(size=2))
            await play_round(*clients)
            row = await federation.ended(run)
        assert federation.model(row.current_model) == mean_of(0, 1)
        assert "fold 1" in caplog.text

    async def test_a_contradiction_with_the_record_fails_the_run(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It must not be mistaken for a repeated answer."""

        def refuse(*_: object) -> None:
            raise RecordConflictError("round 0 was released from another attempt")

        monkeypatch.setattr(releases, "record", refuse)
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        row = await federation.ended(run)
        assert (row.status, row.reason) == (
            "failed",
            "charge of round 1: round 0 was released from another attempt",
        )
        assert federation.blobs() == {row.initial_model}

    @pytest.mark.parametrize("method", ["retain", "drop", "drop_all", "discard_candidates"])
    @pytest.mark.parametrize("error", [DISK_FULL, PermissionError(13, "denied")])
    async def test_tidying_that_fails_harms_no_run(
        self,
        federation: Federation,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        method: str,
        error: Exception,
    ) -> None:
        monkeypatch.setattr(Aggregator, method, failing(99, error, getattr(Aggregator, method)))
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job(rounds=2))
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await play_round(alice)
            assert (await federation.ended(run)).status == "finished"
        assert "not removed" in caplog.text


class TestEvaluators:
    async def run_with(self, data: Path, name: str, evaluator: Any, more: str = "") -> tuple[Federation, str, Any]:
        async with opened(data, evaluators={name: evaluator}) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job(rounds=2, evaluation=f'{QUIET}\nserver = "{name}"\n{more}'))
            for _ in range(2):
                await play_round(alice)
            row = await federation.ended(run)
            return federation, run, (row, await federation.rounds(run))

    async def test_its_metrics_are_in_the_round_s_record(self, tmp_path: Path) -> None:
        _, _, (row, found) = await self.run_with(tmp_path / "data", "norm", plugins.norm)
        total = float(np.abs(update_values(0)).sum())
        assert row.status == "finished"
        assert [dict(one.metrics)["server/norm"] for one in found] == pytest.approx([total, 2 * total], rel=1e-6)

    async def test_the_mean_of_the_models_is_judged_too(self, tmp_path: Path) -> None:
        _, _, (_, found) = await self.run_with(tmp_path / "data", "norm", plugins.norm, "[iterate_averaging]")
        total = float(np.abs(update_values(0)).sum())
        judged = [dict(one.metrics) for one in found]
        assert [one["server/norm"] for one in judged] == pytest.approx([total, 2 * total], rel=1e-6)
        assert [one["server/averaged/norm"] for one in judged] == pytest.approx([total, 1.5 * total], rel=1e-6)

    async def test_one_that_fails_costs_no_release_and_is_told(self, tmp_path: Path) -> None:
        _, _, (row, found) = await self.run_with(tmp_path / "data", "broken", plugins.failing)
        assert (row.status, row.rounds_released) == ("finished", 2)
        for one in found:
            assert one.phase == "released"
            assert one.reason.endswith("evaluator broken failed: ZeroDivisionError: no data for 2 tensors")
            assert "the goal of 1 is reached" in one.reason

    async def test_one_that_hangs_does_not_hold_up_a_cancellation(self, tmp_path: Path) -> None:
        plugins.release.clear()
        plugins.hangs.clear()
        async with opened(tmp_path / "data", evaluators={"slow": plugins.hanging}) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job(rounds=2, evaluation=f'{QUIET}\nserver = "slow"'))
            await play_round(alice)
            await asyncio.wait_for(asyncio.to_thread(plugins.hangs.wait, WAIT_S), WAIT_S)
            await federation.coordinator.cancel(run, "enough")
            row = await federation.ended(run)
            (found,) = await federation.rounds(run)
        plugins.release.set()
        assert (row.status, row.rounds_released) == ("cancelled", 1)
        assert "the run was cancelled meanwhile" in found.reason

    async def test_one_that_is_no_longer_installed_is_told(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data", evaluators={"norm": plugins.norm}) as federation:
            run = await federation.submit(job(evaluation=f'{QUIET}\nserver = "norm"'))
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            await play_round(alice)
            await federation.ended(run)
            (found,) = await federation.rounds(run)
        assert "evaluator norm is not installed any more" in found.reason


class TestRetention:
    async def test_only_so_many_models_are_kept(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data", keep_models=2) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job(rounds=5))
            for _ in range(5):
                await play_round(alice)
            row = await federation.ended(run)
            assert len(federation.blobs()) == 3
            assert {row.initial_model, row.current_model} <= federation.blobs()

    async def test_only_the_newest_optimiser_state_is_kept(self, tmp_path: Path) -> None:
        text = job(rounds=4) + b'[optimiser]\nname = "fedadam"\n'
        async with opened(tmp_path / "data", keep_models=1) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(text)
            for _ in range(4):
                await play_round(alice)
            row = await federation.ended(run)
            states = federation.blobs() - {row.initial_model, row.current_model}
            assert len(states) == 2  # first and second moment

    async def test_a_candidate_that_was_never_released_goes_with_its_run(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Aggregator, "can_charge", lambda *_: False)
        monkeypatch.setattr(Aggregator, "make_again", failing(99, DISK_FULL, Aggregator.make_again))
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await play_round(alice)
        await federation.state(run, lambda state: state.round is not None and state.round.phase is Phase.AGGREGATED)
        assert len(federation.blobs()) == 2
        await federation.coordinator.cancel(run, "enough")
        row = await federation.ended(run)
        assert federation.blobs() == {row.initial_model}

    async def test_models_that_nothing_names_go_at_the_next_start(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job())
            await play_round(alice)
            row = await federation.ended(run)
            store = federation.store.blobs
            assert isinstance(store, DirectoryBlobStore)
            with store.create() as writer:
                writer.write(b"left by a killed server")
                orphan = writer.commit().name
        async with opened(tmp_path / "data") as federation:
            assert federation.blobs() == {row.initial_model, row.current_model}
            assert orphan not in federation.blobs()
