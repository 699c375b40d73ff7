import asyncio
import contextlib
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, update

from atoll.server.config.storage_settings import StorageSettings
from atoll.server.errors import (
    CallerError,
    ConflictError,
    CorruptDataError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    TooLateError,
    UnavailableError,
)
from atoll.server.ingest.coordinator_api import Commit, Disposition
from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    ChargeAndStore,
    DrawCohort,
    DropSpools,
    Effect,
    Finish,
    Fold,
    Invite,
    Phase,
    PrepareRound,
    Publish,
    RunState,
    StartDeadline,
    StartRetry,
)
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.stepping import Answer, Work
from atoll.server.stores import BlobMissingError, RecordMissingError, Store, participants, runs, schema
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.v1 import participation_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.runs.federation import LAYOUT, NODE, Client, Federation, Key, job, opened, update_values

FAMILY = "final = true\nbefore_training = false"


def is_open(state: RunState) -> bool:
    return state.round is not None and state.round.phase is Phase.OPEN


class TestSubmit:
    async def test_a_submitted_run_is_durable_and_running(self, federation: Federation) -> None:
        run = await federation.submit(job())
        row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
        assert (row.status, row.submitted_by, row.name) == ("running", "admin", "test")
        assert federation.active(run).driver.next_seq == 1

    async def test_what_does_not_fit_is_refused_and_leaves_no_run(self, federation: Federation) -> None:
        other = Layout((TensorSpec("w", (3,), Dtype.FLOAT32),))
        blob = next(iter(federation.blobs()), "0" * 64)
        submit = federation.coordinator.submit
        with pytest.raises(BlobMissingError):
            await submit(job_toml=job(), file_name="", layout=LAYOUT, initial_blob=blob, operator="a")
        await federation.submit(job())
        with pytest.raises(InvalidRequestError, match="96 bytes, its layout 12"):
            await submit(
                job_toml=job(), file_name="", layout=other, initial_blob=next(iter(federation.blobs())), operator="a"
            )
        found = await federation.store.reader.run(runs.listed, project=None)
        assert len(found) == 1

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
    async def test_a_model_that_is_not_finite_is_refused_by_its_tensor(
        self, federation: Federation, wrong: float
    ) -> None:
        values = np.zeros(LAYOUT.size, np.float32)
        values[-1] = wrong
        with pytest.raises(InvalidRequestError, match=repr(LAYOUT.tensors[-1].name)) as caught:
            await federation.submit(job(), values)
        assert caught.value.detail.code == "job.not_finite"


class TestGrants:
    async def test_a_member_may_upload_so_much(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        await alice.next("participate")
        found = await federation.coordinator.grant_upload(alice.name, run, 0, 0)
        assert (found.elements, found.max_abs, found.max_weight, found.receipt) == (LAYOUT.size, 32.0, 10, None)
        assert found.max_bytes >= 2 * 8 * LAYOUT.size
        assert bob.pending == 1

    async def test_a_stranger_may_not(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job())
        await federation.state(run, is_open)
        stranger = bob if alice.pending else alice
        with pytest.raises(ForbiddenError):
            await federation.coordinator.grant_upload(stranger.name, run, 0, 0)

    async def test_rounds_that_are_not_begun_and_runs_that_are_not(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await alice.next("participate")
        for number, attempt in ((0, 1), (5, 0)):
            with pytest.raises(InvalidRequestError, match="has not begun"):
                await federation.coordinator.grant_upload(alice.name, run, number, attempt)
        with pytest.raises(RecordMissingError):
            await federation.coordinator.grant_upload(alice.name, "rzzzzzzzzzzzz", 0, 0)
        with pytest.raises(NotFoundError):
            await federation.coordinator.pause("rzzzzzzzzzzzz")

    async def test_an_ended_run_has_receipts_and_takes_nothing(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        receipt = await alice.report(task.key, update_values(1))
        await federation.coordinator.cancel(run, "enough")
        assert (await federation.coordinator.grant_upload(alice.name, run, 0, 0)).receipt == receipt
        with pytest.raises(TooLateError, match="cancelled"):
            await federation.coordinator.grant_upload(bob.name, run, 0, 0)
        late = Commit(bob.name, transfer_pb2.ReportRequest(round=task.key, digest=""), NODE, late=True)
        assert (await federation.coordinator.commit(late)).disposition is Disposition.DROPPED

    async def test_an_evaluation_round_grants_no_bytes(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job(evaluation=FAMILY))
        await alice.report((await alice.next("participate")).key, update_values(1))
        key = (await alice.next("participate")).key
        assert (await federation.coordinator.grant_upload(alice.name, run, key.round, key.attempt)).max_bytes == 0


class TestCommits:
    async def test_a_rejection_is_recorded(self, federation: Federation) -> None:
        alice, _ = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=2, straggler="max_attempts = 1"))
        task = await alice.next("participate")
        refused = Commit(alice.name, transfer_pb2.ReportRequest(round=task.key), NODE, rejection="not finite")
        await federation.coordinator.commit(refused)
        await federation.ended(run)
        assert (await federation.members(run))[alice.name] == ("rejected", "not finite")

    async def test_a_late_claim_about_a_round_that_takes_reports_is_asked_again(self, federation: Federation) -> None:
        """The round moved on between the worker's question and its claim, which has no upload."""
        (alice,) = await federation.clients("alice")
        await federation.submit(job())
        task = await alice.next("participate")
        late = Commit(alice.name, transfer_pb2.ReportRequest(round=task.key, weight=1), NODE, late=True)
        with pytest.raises(UnavailableError, match="takes reports"):
            await federation.coordinator.commit(late)

    async def test_metrics_are_averaged_by_weight(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        key = (await alice.next("participate")).key
        await alice.report(key, update_values(1), 3, loss=1.0)
        await bob.report(key, update_values(2), 9, loss=5.0)
        await federation.ended(run)
        (found,) = await federation.rounds(run)
        assert dict(found.metrics) == {"train/loss": pytest.approx(4.0)}

    async def test_weight_by_weight(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        key = (await alice.next("participate")).key
        await alice.report(key, update_values(1), 1)
        await bob.report(key, update_values(2), 9)
        row = await federation.ended(run)
        expected = 0.1 * update_values(1).astype(float) + 0.9 * update_values(2)
        assert federation.model(row.current_model) == pytest.approx(expected, abs=1e-6)


class TestReplies:
    async def test_an_answer_out_of_place_is_ignored(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await alice.reply(Key(run=run, round=9), "accepted")
        await alice.reply(Key(run="rzzzzzzzzzzzz"), "failed")
        task = await alice.next("participate")
        await alice.reply(task.key, "accepted")
        await federation.state(run, lambda state: state.round is not None and state.round.roster.outstanding == 1)

    async def test_an_unknown_verdict(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        odd = participation_pb2.TaskReply(key=Key(run=run))
        with pytest.raises(InvalidRequestError, match="verdict 0"):
            await federation.coordinator.replied(alice.name, odd)


class TestOrders:
    @pytest.mark.parametrize("order", ["pause", "resume"])
    async def test_an_ended_run_takes_none(self, federation: Federation, order: str) -> None:
        run = await federation.submit(job())
        await federation.coordinator.cancel(run, "enough")
        with pytest.raises(ConflictError, match="cancelled already"):
            await getattr(federation.coordinator, order)(run)

    async def test_a_revoked_participant_loses_its_session(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        await federation.coordinator.revoke(alice.name, "lost laptop" * 1000)
        assert alice.session is not None
        assert await asyncio.wait_for(alice.session.outbox.get(), WAIT_S) is None
        row = await federation.store.reader.run(lambda connection: participants.get(connection, alice.name))
        assert row is not None
        assert row.revoked_reason.startswith("lost laptop")
        assert len(row.revoked_reason) == 1024

    async def test_a_reason_is_stored_whatever_it_holds(self, tmp_path: Path, postgresql_url: str) -> None:
        """PostgreSQL has no text with NUL; an order with one was refused as a fault in the server."""
        Store.open(tmp_path, url=postgresql_url).close()
        async with opened(tmp_path) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job())
            await federation.coordinator.cancel(run, "enough\0")
            assert (await federation.store.reader.run(runs.get, run)).reason == r"enough\x00"
            row = await federation.coordinator.revoke(alice.name, "lost\0")
            assert row.revoked_reason == r"lost\x00"


class TestTwoRuns:
    async def test_they_never_draw_the_same_participant(self, federation: Federation) -> None:
        """All of them draw at the same moment from the same few."""
        everyone = {client.name: client for client in await federation.clients(*"abcdef")}
        submitted = await asyncio.gather(*(federation.submit(job(size=2)) for _ in range(3)))
        cohorts = []
        for run in submitted:
            state = await federation.state(run, is_open)
            assert state.round is not None
            cohorts.append({member.participant for member in state.round.roster})
        assert sorted(name for cohort in cohorts for name in cohort) == sorted(everyone)

    async def test_one_that_waits_goes_on_when_the_other_is_done(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        first, second = await federation.submit(job()), await federation.submit(job())
        for run in (first, second):
            task = await alice.next("participate")
            assert task.key.run == run
            assert alice.pending == 0
            await alice.report(task.key, update_values(1))
            await federation.ended(run)

    async def test_a_run_that_cannot_draw_leaves_participants_to_others(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        waiting = await federation.submit(job(size=2))
        other = await federation.submit(job())
        assert (await alice.next("participate")).key.run == other
        assert not is_open(federation.active(waiting).driver.state)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """The model and the rounds of an undisturbed run."""

    async def undisturbed() -> tuple[str, list[str]]:
        async with opened(tmp_path_factory.mktemp("reference") / "data") as federation:
            return await play(federation, await federation.submit(EVENTFUL))

    return asyncio.run(undisturbed())


EVENTFUL = job(rounds=2, size=2, straggler="max_attempts = 3", evaluation=FAMILY).replace(
    b"quorum = 2", b"quorum = 2\nseed = 7"
)


async def play(federation: Federation, run: str) -> tuple[str, list[str]]:
    """Play a run with two participants from its present state to its end: its model, and the outcome of each round."""
    players = [asyncio.create_task(take_part(client)) for client in await federation.clients("alice", "bob")]
    row = await federation.ended(run)
    for player in players:
        player.cancel()
    outcomes = await asyncio.gather(*players, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
    phases = [f"{one.round}.{one.attempt} {one.kind} {one.phase}" for one in await federation.rounds(run)]
    return row.current_model, phases


async def take_part(client: Client) -> None:
    """Answer invitations; Bob declines the second round at first."""
    seed = {"a": 1, "b": 2}[client.name[1]]
    while True:
        task = await client.invitation()
        key = task.key
        with contextlib.suppress(TooLateError, CallerError):  # the round is over: wait for the next
            if task.kind == participation_pb2.Participate.KIND_EVALUATE:
                await client.evaluate(key, accuracy=0.5)
            elif (key.round, key.attempt, seed) == (1, 0, 2):
                await client.reply(key, "declined", "not now")
            else:
                await client.report(key, update_values(10 * key.round + seed))


KINDS: tuple[type[Effect], ...] = (
    DrawCohort,
    PrepareRound,
    Invite,
    StartDeadline,
    Fold,
    Aggregate,
    ChargeAndStore,
    Publish,
    DropSpools,
)
FROZEN: list[tuple[type[Effect], int]] = [
    *((kind, number) for kind in KINDS for number in (0, 1)),
    (StartRetry, 1),
    (Finish, 2),
]


class TestRestart:
    @pytest.mark.parametrize(("frozen", "at_round"), FROZEN)
    async def test_a_run_that_stopped_at_any_effect_goes_on_to_the_same_model(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        reference: tuple[str, list[str]],
        frozen: type[Effect],
        at_round: int,
    ) -> None:
        """The server dies with this effect durable but not done."""
        reached = asyncio.Event()
        start, perform = RunPerformer._start, RunDriver._perform

        def hold_back(driver: RunDriver, effect: Effect, state: RunState) -> Answer | Work:
            if reached.is_set() or isinstance(effect, frozen):
                return partial(driver._begin, effect)
            return perform(driver, effect, state)

        def stop_at(performer: RunPerformer, effect: Effect, work: Work) -> None:
            key: Any = getattr(effect, "key", getattr(effect, "through", None))
            due = key is None or key.round >= at_round
            if reached.is_set() or (isinstance(effect, frozen) and due):
                reached.set()
            else:
                start(performer, effect, work)

        with monkeypatch.context() as patch:
            patch.setattr(RunPerformer, "_start", stop_at)
            patch.setattr(RunDriver, "_perform", hold_back)
            async with opened(tmp_path / "data") as federation:
                run = await federation.submit(EVENTFUL)
                players = [
                    asyncio.create_task(take_part(client)) for client in await federation.clients("alice", "bob")
                ]
                stopped = asyncio.create_task(reached.wait())
                await asyncio.wait({stopped, *players}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
                for player in players:
                    player.cancel()
                await asyncio.gather(*players, return_exceptions=True)
        assert reached.is_set()
        async with opened(tmp_path / "data") as federation:
            active = federation.coordinator.active(run)
            if active is None:  # it had ended: only tidying was left
                assert frozen is Finish
                assert federation.services.spool.runs() == []
                return
            assert await play(federation, run) == reference

    async def test_a_run_that_was_submitted_but_not_begun_begins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def die(_: RunPerformer) -> None:
            raise UnavailableError("server.stopping", "gone")

        with monkeypatch.context() as patch:
            patch.setattr(RunPerformer, "start_run", die)
            async with opened(tmp_path / "data") as federation:
                with pytest.raises(UnavailableError):
                    await federation.submit(job())
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            await alice.next("participate")

    async def test_a_paused_run_stays_paused(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            run = await federation.submit(job())
            await federation.coordinator.pause(run)
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            assert federation.active(run).driver.state.status == "paused"
            await federation.coordinator.resume(run)
            await alice.next("participate")

    async def test_uploads_of_unknown_runs_are_swept_those_of_live_ones_kept(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            alice, _ = await federation.clients("alice", "bob")
            run = await federation.submit(job(size=2))
            task = await alice.next("participate")
            await alice.report(task.key, update_values(1))
            alice.spool(Key(run="rghost234567a"), update_values(2))
        async with opened(tmp_path / "data") as federation:
            assert federation.services.spool.runs() == [run]

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("UPDATE events SET body = replace(body, '10', '11') WHERE kind = 'cohort_drawn'", "changed on disk"),
            ("DELETE FROM events WHERE kind = 'cohort_drawn'", "is missing from the log"),
        ],
    )
    async def test_a_damaged_log_is_not_played_on(self, tmp_path: Path, damage: str, message: str) -> None:
        async with opened(tmp_path / "data") as federation:
            await federation.clients("alice")
            run = await federation.submit(job())
            await federation.state(run, is_open)
            spool = federation.services.spool
            (await federation.client("alice")).spool(Key(run=run), update_values(1))
        damage_database(tmp_path / "data", damage)
        with pytest.raises(CorruptDataError, match=message):
            async with opened(tmp_path / "data"):
                pass
        assert spool.runs() == [run]

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE runs SET job_toml = replace(job_toml, 'size = ', 'size = 1')",
            "UPDATE runs SET job_toml = CAST(x'ff' AS TEXT)",
            "UPDATE runs SET layout = substr(layout, 2)",
            "UPDATE runs SET initial_model = substr(initial_model, 2) || 'a'",
        ],
    )
    async def test_a_run_is_not_resumed_with_another_job_or_model(self, tmp_path: Path, damage: str) -> None:
        async with opened(tmp_path / "data") as federation:
            await federation.submit(job())
        damage_database(tmp_path / "data", damage)
        with pytest.raises(CorruptDataError) as refused:
            async with opened(tmp_path / "data"):
                pass
        assert refused.value.detail.code == "store.damaged"
        assert "restore the data directory from a backup" in refused.value.detail.remedy

    @pytest.mark.parametrize(
        "damage",
        [
            "DELETE FROM models WHERE version = 1",
            "UPDATE models SET optimiser_blobs = '{}' WHERE version = 1",
        ],
    )
    async def test_a_run_does_not_go_on_from_another_model(self, tmp_path: Path, damage: str) -> None:
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(job(rounds=2) + b'[optimiser]\nname = "fedadam"\n')
            await alice.report((await alice.next("participate")).key, update_values(1))
            await federation.state(run, lambda state: is_open(state) and state.version == 1)
        damage_database(tmp_path / "data", damage)
        async with opened(tmp_path / "data") as federation:
            (alice,) = await federation.clients("alice")
            await alice.report((await alice.next("participate")).key, update_values(2))
            row = await federation.ended(run)
        assert row.status == "failed"
        assert "not on record" in row.reason or "model 1 of run" in row.reason


async def test_a_job_with_a_key_of_a_newer_version_is_not_played_without_it(tmp_path: Path) -> None:
    def changed_by_a_newer_version(connection: Connection, run: str) -> None:
        row = runs.get(connection, run)
        newer = replace(row, job_toml=row.job_toml.replace("[job]", '[job]\ncolour = "red"'))
        values = {"job_toml": newer.job_toml, "checksum": newer.checksum}
        connection.execute(update(schema.runs).where(schema.runs.c.id == run).values(values))

    async with opened(tmp_path / "data") as federation:
        run = await federation.submit(job())
        await federation.store.writer.run(changed_by_a_newer_version, run)
    with pytest.raises(CorruptDataError, match=f"(?s)cannot read the job of run {run}.*job.colour") as refused:
        async with opened(tmp_path / "data"):
            pass
    assert "start the version of the server that accepted it" in refused.value.detail.remedy


def damage_database(data: Path, statement: str) -> None:
    """Change one row while no server uses it."""
    with contextlib.closing(sqlite3.connect(data / "atoll.sqlite3")) as database, database:
        assert database.execute(statement).rowcount == 1


async def test_it_has_settled_when_no_round_is_being_released(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping server waits for that; otherwise the next one would have to compute the sum again."""
    began, go, aggregate = asyncio.Event(), asyncio.Event(), Aggregator.aggregate

    async def held(aggregator: Aggregator, effect: Aggregate) -> Aggregated:
        began.set()
        await go.wait()
        return await aggregate(aggregator, effect)

    monkeypatch.setattr(Aggregator, "aggregate", held)
    await federation.coordinator.settled()
    (alice,) = await federation.clients("alice")
    run = await federation.submit(job())
    key = (await alice.next("participate")).key
    await federation.coordinator.settled()
    await alice.report(key, update_values(1))
    await began.wait()
    federation.coordinator.leave()
    settled = asyncio.create_task(federation.coordinator.settled())
    await asyncio.sleep(0.05)
    assert not settled.done()
    go.set()
    async with asyncio.timeout(WAIT_S):
        await settled
    assert (await federation.ended(run)).status == "finished"


async def test_no_call_is_answered_before_all_runs_are_resumed(federation: Federation) -> None:
    """Ingest workers serve while the coordinator still reads its logs, so a report must not find an unknown run."""
    early = Coordinator(federation.services, federation.coordinator._certificates, StorageSettings(), insecure=False)
    for call in (
        early.identify(b"pem"),
        early.grant_upload("paaaaaaaaaaaa", "r", 0, 0),
        early.commit(Commit("paaaaaaaaaaaa", transfer_pb2.ReportRequest(), NODE)),
    ):
        with pytest.raises(UnavailableError, match="starting"):
            await call
