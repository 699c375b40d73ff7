import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll.server
from atoll.server.control import PHASES, Following
from atoll.server.rounds import Member, RoundState
from atoll.server.rpc import control, operator_handlers, views, watching
from atoll.server.stores import DirectoryBlobStore
from atoll.wire.digest import BlobManifest
from atoll.wire.join_token import JoinToken
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import PROTOCOL, layout_from_proto, layout_to_proto, manifest_to_proto
from atoll.wire.v1 import control_pb2, enrolment_pb2, participation_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import (
    LAYOUT,
    Key,
    Participant,
    World,
    each,
    initial_values,
    job,
    model_requests,
    refusal,
    refused_code,
    update_values,
)

RAW = np.arange(1000, dtype=np.float32).tobytes()
MANIFEST = BlobManifest.of_buffer(RAW, 1024)
PAUSED, RUNNING = control_pb2.RUN_STATUS_PAUSED, control_pb2.RUN_STATUS_RUNNING
FINISHED, CANCELLED = control_pb2.RUN_STATUS_FINISHED, control_pb2.RUN_STATUS_CANCELLED


async def summary(world: World, run: str) -> control_pb2.RunSummary:
    return (await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run), timeout=WAIT_S)).summary


async def play(world: World, *participants: Participant, rounds: int = 1, more: str = "") -> str:
    """Play a whole run; returns its id."""
    streams = [await world._stack.enter_async_context(one.check_in()) for one in participants]
    run = await world.submit(job(size=len(participants), rounds=rounds) + more.encode())
    for _ in range(rounds):
        tasks = [await stream.next("participate") for stream in streams]
        await asyncio.gather(
            *(
                participants[seed].report(task.key, update_values(seed), train_seconds=2.5, download_seconds=-1.0)
                for seed, task in enumerate(tasks)
            )
        )
    await world.until(run, "finished")
    return run


class TestUploadModel:
    async def upload(self, world: World, requests: list[control_pb2.UploadModelRequest]) -> str:
        return (await world.operator.control.UploadModel(each(requests), timeout=WAIT_S)).blob

    async def test_the_blob_has_the_name_of_its_manifest(self, world: World) -> None:
        assert await self.upload(world, model_requests(RAW, MANIFEST)) == MANIFEST.name
        assert await self.upload(world, model_requests(RAW, MANIFEST)) == MANIFEST.name

    @pytest.mark.parametrize("order", [[1, 0], [0, 2], [0, 0], [0, 1, 3]])
    async def test_chunks_out_of_order_are_refused(self, world: World, order: list[int]) -> None:
        requests = model_requests(RAW, MANIFEST)
        sent = [requests[place] for place in order]
        sent[0].manifest.CopyFrom(manifest_to_proto(MANIFEST))
        assert await refused_code(self.upload(world, sent)) == ("INVALID_ARGUMENT", "model.order")

    async def test_a_wrong_chunk_is_refused(self, world: World) -> None:
        requests = model_requests(RAW, MANIFEST)
        requests[2].payload = requests[2].payload[::-1]
        assert await refused_code(self.upload(world, requests)) == ("INVALID_ARGUMENT", "wire.invalid")

    @pytest.mark.parametrize("length", [0, 1, 3])
    async def test_a_model_that_is_not_whole_is_refused_and_leaves_nothing(self, world: World, length: int) -> None:
        call = self.upload(world, model_requests(RAW, MANIFEST)[:length])
        assert await refused_code(call) == ("INVALID_ARGUMENT", "model.incomplete")
        assert list((world.config.data / "blobs" / "incoming").iterdir()) == []

    async def test_too_many_chunks_are_refused(self, world: World) -> None:
        requests = model_requests(RAW, MANIFEST)
        requests.append(control_pb2.UploadModelRequest(index=4, payload=b"x"))
        assert await refused_code(self.upload(world, requests)) == ("INVALID_ARGUMENT", "wire.invalid")

    async def test_a_manifest_that_cannot_be_is_refused(self, world: World) -> None:
        requests = model_requests(RAW, MANIFEST)
        requests[0].manifest.chunk_bytes = 7
        assert await refused_code(self.upload(world, requests)) == ("INVALID_ARGUMENT", "wire.invalid")


class TestSubmit:
    def request(self, **changes: Any) -> control_pb2.SubmitRunRequest:
        fields: dict[str, Any] = {"job_toml": job(), "file_name": "digits.toml", "layout": layout_to_proto(LAYOUT)}
        return control_pb2.SubmitRunRequest(**(fields | changes))

    async def submit(self, world: World, **changes: Any) -> str:
        changes.setdefault("initial_blob", await world.upload_model())
        return (await world.operator.control.SubmitRun(self.request(**changes), timeout=WAIT_S)).run

    async def test_a_run_is_there_when_it_is_answered(self, world: World) -> None:
        run = await self.submit(world)
        found = await summary(world, run)
        assert (found.name, found.status, found.rounds_total, found.rounds_released) == ("test", RUNNING, 1, 0)

    async def test_all_problems_of_a_job_are_listed(self, world: World) -> None:
        bad = job().replace(b"size = 1", b"size = 0").replace(b"rounds = 1", b"rounds = -3\ncolour = 1")
        found = await refusal(self.submit(world, job_toml=bad))
        assert found.detail is not None
        assert found.detail.code == "job.invalid"
        for key in ("cohort.size = 0", "job.rounds = -3", "job.colour = 1"):
            assert f"{key}" in found.detail.message
        assert found.detail.message.count("digits.toml:") >= 4

    async def test_very_many_problems_arrive_as_far_as_they_fit(self, world: World) -> None:
        keys = "\n".join(f"unknown_{number} = {number}" for number in range(2000))
        found = await refusal(self.submit(world, job_toml=job().replace(b"[model]", keys.encode() + b"\n[model]")))
        assert found.detail is not None
        assert found.detail.code == "job.invalid"
        assert "unknown_7" in found.detail.message

    async def test_the_model_must_be_there_and_fit(self, world: World) -> None:
        call = self.submit(world, initial_blob="0" * 64)
        assert await refused_code(call) == ("NOT_FOUND", "blob.missing")
        other = layout_to_proto(Layout((TensorSpec("w", (3,), Dtype.FLOAT32),)))
        assert await refused_code(self.submit(world, layout=other)) == ("INVALID_ARGUMENT", "job.model")

    async def test_a_layout_that_cannot_be_is_refused(self, world: World) -> None:
        layout = layout_to_proto(LAYOUT)
        layout.tensors[1].name = layout.tensors[0].name
        assert await refused_code(self.submit(world, layout=layout)) == ("INVALID_ARGUMENT", "wire.invalid")

    async def test_an_evaluator_must_be_installed(self, world: World) -> None:
        wanted = job(evaluation='server = "digits"')
        found = await refusal(self.submit(world, job_toml=wanted))
        assert found.detail is not None
        assert found.detail.code == "job.evaluator"
        assert "installed: none" in found.detail.message

    async def test_garbage_is_the_callers_fault(self, world: World) -> None:
        call = world.operator.raw("/atoll.wire.v1.ControlService/SubmitRun", b"\xff\xff")
        assert await refused_code(call) == ("INVALID_ARGUMENT", "wire.message")
        assert await refused_code(self.submit(world, job_toml=b"\xff")) == ("INVALID_ARGUMENT", "job.invalid")


class TestRuns:
    async def test_the_newest_come_first_and_the_list_is_bounded(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = [await world.submit() for _ in range(3)]

        async def listed(limit: int, after: str = "") -> tuple[list[str], str]:
            request = control_pb2.ListRunsRequest(limit=limit, after=after)
            answer = await world.operator.control.ListRuns(request, timeout=WAIT_S)
            return [run.run for run in answer.runs], answer.next

        assert await listed(0) == (made[::-1], "")
        newest, after = await listed(2)
        assert newest == made[:0:-1]
        assert await listed(2, after) == (made[:1], "")
        monkeypatch.setattr(operator_handlers, "MAX_LISTED", 1)
        assert (await listed(2**32 - 1))[0] == made[2:]
        request = control_pb2.ListRunsRequest(after="yesterday")
        assert await refused_code(world.operator.control.ListRuns(request)) == ("INVALID_ARGUMENT", "list.after")

    async def test_a_run_with_its_rounds_and_members(self, world: World, alice: Participant, bob: Participant) -> None:
        run = await play(world, alice, bob, rounds=2)
        answer = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run, members=True), timeout=WAIT_S)
        assert answer.summary.status == FINISHED
        assert answer.summary.finished_at >= answer.summary.created_at
        assert answer.job_toml == job(size=2, rounds=2).decode()
        assert answer.connected == 2
        assert [(one.round, one.phase, one.reported) for one in answer.rounds] == [
            (0, "released", 2),
            (1, "released", 2),
        ]
        found = {member.participant: member for member in answer.rounds[0].members}
        assert found[bob.name].organisation == "beta"
        assert found[alice.name].weight == 10
        assert found[alice.name].report_s >= 0.0
        lean = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run), timeout=WAIT_S)
        assert [list(one.members) for one in lean.rounds] == [[], []]

    async def test_one_round_with_its_timeline(self, world: World, alice: Participant, bob: Participant) -> None:
        run = await play(world, alice, bob, rounds=2)
        request = control_pb2.GetRunRequest(run=run, members=True, round=1)
        (found,) = (await world.operator.control.GetRun(request, timeout=WAIT_S)).rounds
        assert (found.round, set(found.phases_s)) == (1, set(PHASES))
        assert found.created_at + sum(found.phases_s.values()) == pytest.approx(found.closed_at, abs=1e-3)
        for member in found.members:
            assert not member.HasField("accept_s")
            assert 0.0 <= member.upload_s <= member.report_s <= member.fold_s
            assert member.end_s == member.report_s
            assert dict(member.claimed_s) == {"fit": 2.5}
            assert member.payload_bytes == LAYOUT.size_bytes

    async def test_a_long_run_is_shown_from_its_end(
        self, world: World, alice: Participant, bob: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = await play(world, alice, bob, rounds=3)
        monkeypatch.setattr(control, "MAX_ROUNDS", 2)
        monkeypatch.setattr(control, "MAX_MEMBERS", 3)
        answer = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run, members=True), timeout=WAIT_S)
        assert [(one.round, len(one.members)) for one in answer.rounds] == [(1, 0), (2, 2)]

    async def test_a_run_in_work_shows_its_live_round(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            run = await world.submit(job(window_s=5000.0))
            await stream.next("participate")
            request = control_pb2.GetRunRequest(run=run, members=True)
            answer = await world.operator.control.GetRun(request, timeout=WAIT_S)
            lean = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run), timeout=WAIT_S)
        assert [len(one.members) for one in lean.rounds] == [0]
        (live,) = answer.rounds
        assert (live.phase, live.reported, live.cohort, live.quorum, live.wanted) == ("open", 0, 1, 1, 1)
        assert 5000.0 - WAIT_S < live.remaining_s <= 5000.0
        assert live.members[0].status == "invited"
        assert not live.members[0].HasField("accept_s")
        assert not live.members[0].HasField("end_s")
        assert set(live.phases_s) == {"draw", "prepare"}

    @pytest.mark.parametrize(
        "name", ["GetRun", "PauseRun", "ResumeRun", "CancelRun", "ExtendRun", "DeleteRun", "GetRunModel", "WatchRun"]
    )
    async def test_an_unknown_run_is_not_found(self, world: World, name: str) -> None:
        request = getattr(control_pb2, f"{name}Request")(run="rzzzzzzzzzzzz")
        call = getattr(world.operator.control, name)(request, timeout=WAIT_S)
        assert await refused_code(call.read() if name == "WatchRun" else call) == ("NOT_FOUND", "run.missing")


class TestOrders:
    async def test_a_pause_without_members_at_work_is_immediate_and_is_taken_back(
        self, world: World, alice: Participant
    ) -> None:
        run = await world.submit()
        answer = await world.operator.control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
        assert answer.summary.status == PAUSED
        resumed = await world.operator.control.ResumeRun(control_pb2.ResumeRunRequest(run=run), timeout=WAIT_S)
        assert resumed.summary.status == RUNNING
        async with alice.check_in() as stream:
            await stream.next("participate")

    async def test_a_pause_waits_for_the_round_and_is_recorded_however_that_ends(
        self, world: World, alice: Participant
    ) -> None:
        """The round is abandoned because its only member declines."""
        async with alice.check_in() as stream:
            run = await world.submit(job(straggler="max_attempts = 2"))
            task = await stream.next("participate")
            answer = await world.operator.control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
            assert answer.summary.status == RUNNING
            assert "pauses when this round is done" in answer.summary.reason
            await stream.reply(task.key, participation_pb2.TaskReply.VERDICT_DECLINED, "no")
            assert (await world.until(run, "paused")).summary.reason == ""
            await world.operator.control.ResumeRun(control_pb2.ResumeRunRequest(run=run), timeout=WAIT_S)
            assert (await stream.next("participate")).key.attempt == 1

    async def test_a_cancelled_run_says_why_and_stops_its_members(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            run = await world.submit()
            await stream.next("participate")
            request = control_pb2.CancelRunRequest(run=run, reason="wrong data" + "!" * 5000)
            answer = await world.operator.control.CancelRun(request, timeout=WAIT_S)
            assert (await stream.next("stop")).key.run == run
        assert answer.summary.status == CANCELLED
        assert answer.summary.reason.startswith("wrong data!")
        assert len(answer.summary.reason) < 1100

    @pytest.mark.parametrize("name", ["PauseRun", "ResumeRun", "CancelRun"])
    async def test_an_ended_run_takes_no_orders(self, world: World, name: str) -> None:
        run = await world.submit()
        await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
        request = getattr(control_pb2, f"{name}Request")(run=run)
        call = getattr(world.operator.control, name)(request, timeout=WAIT_S)
        assert await refused_code(call) == ("FAILED_PRECONDITION", "run.ended")


class TestDelete:
    async def delete(self, world: World, run: str) -> dict[str, int]:
        answer = await world.operator.control.DeleteRun(control_pb2.DeleteRunRequest(run=run), timeout=WAIT_S)
        assert {one.run for one in answer.removed} <= {run}
        return {one.kind: one.count for one in answer.removed}

    async def test_what_a_run_kept_goes_and_others_keep_what_they_share_with_it(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", keep_models=5) as world:
            alice = await world.participant()
            blobs = DirectoryBlobStore(world.config.data / "blobs")
            first, second = await play(world, alice, rounds=2), await play(world, alice)
            kept = {(await self.model(world, second, version)) for version in (0, 1)}
            assert (
                len(set(blobs.names()) - kept) == 1
            )  # both runs have the initial model, and come to the same next one
            assert (await self.delete(world, first))["models"] == 1
            assert set(blobs.names()) == kept
            assert await refused_code(self.delete(world, first)) == ("NOT_FOUND", "run.missing")
            listed = await world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert [run.run for run in listed.runs] == [second]
            assert (await summary(world, second)).status == FINISHED

    async def model(self, world: World, run: str, version: int) -> str:
        request = control_pb2.GetRunModelRequest(run=run, round=version)
        return (await world.operator.control.GetRunModel(request, timeout=WAIT_S)).model.blob

    async def test_a_run_in_work_is_refused_with_what_to_do_first(self, world: World) -> None:
        run = await world.submit()
        found = await refusal(self.delete(world, run))
        assert found.status.name == "FAILED_PRECONDITION"
        assert found.detail is not None
        assert (found.detail.code, found.detail.remedy) == ("run.active", f"cancel it first: atoll run cancel {run}")
        await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=run), timeout=WAIT_S)
        assert (await self.delete(world, run))["events"] > 0


def test_rounds_know_their_place_among_the_train_rounds() -> None:
    """Four rounds over two fragments, an evaluation after every second: the numbers 2 and 5 are evaluations'."""
    numbering = views.RoundNumbering(fragments=2, evaluate_every=2)
    kinds = ["train", "train", "evaluate"] * 2
    placed = [numbering.numbered(control_pb2.RoundSummary(round=at, kind=kind)) for at, kind in enumerate(kinds)]
    assert [one.version for one in placed] == [0, 1, 2, 2, 3, 4]
    assert [one.fragment for one in placed] == [0, 1, 0, 0, 1, 0]
    assert [one.fragments for one in placed] == [2, 2, 0, 2, 2, 0]


class TestWatch:
    async def test_it_tells_every_change_and_ends_with_the_run(self, world: World, alice: Participant) -> None:
        async with alice.check_in() as stream:
            run = await world.submit()
            task = await stream.next("participate")
            seen = []
            watched = world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run), timeout=WAIT_S)
            async for message in watched:
                seen.append((message.summary.status, message.round.phase, message.round.reported))
                if len(seen) == 1:
                    await alice.report(task.key, update_values(1))
        assert seen[0] == (RUNNING, "open", 0)
        assert seen[-1] == (FINISHED, "released", 1)

    async def test_a_change_names_the_members_that_changed(
        self, world: World, alice: Participant, bob: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[str] = []
        build = views.live_member

        def counted(member: Member, live: RoundState) -> control_pb2.MemberSummary:
            made.append(member.participant)
            assert threading.current_thread() is not threading.main_thread(), "not on the event loop"
            return build(member, live)

        monkeypatch.setattr(views, "live_member", counted)
        monkeypatch.setattr(watching, "PAGE_MEMBERS", 1)
        async with alice.check_in() as stream, bob.check_in():
            run = await world.submit(job(size=2))
            task = await stream.next("participate")
            call = world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run), timeout=WAIT_S)
            following, seen = Following(), list[list[str]]()
            async for message in call:
                complete = following.complete(message)
                if complete is None:
                    continue
                if complete.round.phase == "open":
                    seen.append([member.status for member in complete.round.members])
                if len(seen) == 1 and complete.round.phase == "open":
                    await alice.report(task.key, update_values(1))
                if complete.round.reported == 1:
                    call.cancel()
                    break
        assert seen[0] == ["invited", "invited"]
        assert sorted(seen[-1]) == ["invited", "reported"]
        assert sorted(made) == sorted([alice.name, bob.name, alice.name])

    async def test_an_ended_run_is_reported_once(self, world: World, alice: Participant) -> None:
        run = await play(world, alice)
        watched = world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run), timeout=WAIT_S)
        (last,) = [message async for message in watched]
        assert last.summary.status == FINISHED
        assert last.round.members[0].participant == alice.name

    async def test_a_stopping_server_lets_watchers_go(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", drain_s=WAIT_S) as world:
            run = await world.submit()
            watched = world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=run))
            await watched.read()
            stopping = asyncio.create_task(world.daemon.stop())
            assert await refused_code(watched.read()) == ("UNAVAILABLE", "server.stopping")
            async with asyncio.timeout(WAIT_S / 2):
                await stopping


async def test_an_answer_larger_than_a_chunk_reaches_the_operator(
    world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {f"train/{number:0122}": 1.0 for number in range(64)}
    members = [control_pb2.MemberSummary(participant=f"p{number:012}", metrics=metrics) for number in range(700)]
    run = await play(world, alice)
    monkeypatch.setattr(control, "_members_of", lambda *_: iter([((0, 0), members)]))
    request = control_pb2.GetRunRequest(run=run, members=True)
    found = await world.operator.control.GetRun(request, timeout=WAIT_S)
    assert found.ByteSize() > 6 << 20
    assert len(found.rounds[0].members) == 700
    assert "too large" not in found.summary.reason


class TestModels:
    async def model(self, world: World, run: str, **asked: Any) -> control_pb2.GetRunModelResponse:
        request = control_pb2.GetRunModelRequest(run=run, **asked)
        return await world.operator.control.GetRunModel(request, timeout=WAIT_S)

    async def test_each_released_model_can_be_had(self, world: World, alice: Participant) -> None:
        run = await play(world, alice, rounds=2)
        first = await self.model(world, run, round=0)
        assert first.model.blob == BlobManifest.of_buffer(initial_values().tobytes(), 1024).name
        assert layout_from_proto(first.model.layout) == LAYOUT
        newest = await self.model(world, run)
        assert newest.round == 2
        assert newest.model.blob == (await self.model(world, run, round=2)).model.blob
        assert newest.model.blob == (await summary(world, run)).model_blob
        blobs = {(await self.model(world, run, round=version)).model.blob for version in range(3)}
        assert len(blobs) == 3

    async def test_a_model_that_was_not_released_is_named(self, world: World, alice: Participant) -> None:
        run = await play(world, alice)
        found = await refusal(self.model(world, run, round=2))
        assert found.detail is not None
        assert found.detail.code == "model.missing"
        assert "there is no model 2" in found.detail.message

    async def test_the_mean_of_the_models_can_be_had_beside_the_newest(self, world: World, alice: Participant) -> None:
        run = await play(world, alice, rounds=3, more="\n[iterate_averaging]\ndecay = 0.5")
        blobs = DirectoryBlobStore(world.config.data / "blobs")

        def values(answer: control_pb2.GetRunModelResponse) -> np.ndarray[Any, np.dtype[np.float32]]:
            with blobs.open(answer.model.blob) as blob:
                return np.frombuffer(bytes(blob.read(0, 4 * LAYOUT.size)), "<f4")

        first, second, third = [values(await self.model(world, run, round=number)) for number in (1, 2, 3)]
        answer = await self.model(world, run, averaged=True)
        assert answer.round == 3
        mean = values(answer)
        np.testing.assert_allclose(mean, first / 4 + second / 4 + third / 2, rtol=1e-5, atol=1e-6)
        assert await refused_code(self.model(world, run, averaged=True, round=1)) == ("NOT_FOUND", "model.average")

    async def test_without_a_mean_none_can_be_had(self, world: World, alice: Participant) -> None:
        run = await play(world, alice)
        assert await refused_code(self.model(world, run, averaged=True)) == ("NOT_FOUND", "model.average")

    async def test_old_models_go_but_never_the_first(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", keep_models=1) as world:
            run = await play(world, await world.participant(), rounds=3)
            assert await refused_code(self.model(world, run, round=1)) == ("NOT_FOUND", "model.pruned")
            for kept in (0, 3):
                assert (await self.model(world, run, round=kept)).round == kept


class TestTokens:
    async def create(self, world: World, **changes: Any) -> control_pb2.CreateTokenResponse:
        fields: dict[str, Any] = {
            "organisation": "acme",
            "kind": enrolment_pb2.PARTICIPANT_KIND_EDGE,
            "lifetime_s": 60.0,
            "count": 1,
        }
        request = control_pb2.CreateTokenRequest(**(fields | changes))
        return await world.operator.control.CreateToken(request, timeout=WAIT_S)

    async def test_tokens_carry_all_that_a_newcomer_needs(self, world: World) -> None:
        made = await self.create(world, count=3)
        tokens = [JoinToken.decode(text) for text in made.tokens]
        assert len({token.token_id for token in tokens}) == 3
        assert {token.address for token in tokens} == {world.addresses.enrolment}

    async def test_listed_tokens_keep_their_secrets(self, world: World, alice: Participant) -> None:
        token = JoinToken.decode((await self.create(world)).tokens[0])
        answer = await world.operator.control.ListTokens(control_pb2.ListTokensRequest(), timeout=WAIT_S)
        assert token.secret not in str(answer)
        by_id = {row.token_id: row for row in answer.tokens}
        assert by_id[token.token_id].used_by == ""
        assert [row.used_by for row in answer.tokens if row.token_id != token.token_id] == [alice.name]

    @pytest.mark.usefixtures("alice")
    async def test_all_are_listed_page_by_page(self, world: World) -> None:
        """Tokens that are made together have the same time; one of the five is spent."""
        made = {JoinToken.decode(text).token_id for text in (await self.create(world, count=4)).tokens}
        for unused, count in ((False, 5), (True, 4)):
            found, after = list[str](), ""
            for _ in range(3):
                request = control_pb2.ListTokensRequest(limit=2, after=after, unused=unused)
                answer = await world.operator.control.ListTokens(request, timeout=WAIT_S)
                found += [row.token_id for row in answer.tokens]
                after = answer.next
            assert (len(found), after) == (count, "")
            assert made <= set(found)
            assert len(set(found)) == count

    async def void(self, world: World, *ids: str, created_by: str = "") -> int:
        request = control_pb2.VoidTokensRequest(token_ids=ids, created_by=created_by)
        return (await world.operator.control.VoidTokens(request, timeout=WAIT_S)).voided

    async def test_a_void_token_admits_no_participant_and_the_others_do(self, world: World, alice: Participant) -> None:
        spent = (await world.operator.control.ListTokens(control_pb2.ListTokensRequest(), timeout=WAIT_S)).tokens[0]
        assert (spent.used_by, spent.created_by) == (alice.name, "admin")
        lost, kept = [JoinToken.decode(text) for text in (await self.create(world, count=2)).tokens]
        assert await self.void(world, lost.token_id, spent.token_id) == 1
        assert await refused_code(world.enrol_with(lost, Key())) == ("UNAUTHENTICATED", "token.expired")
        await world.enrol_with(kept, Key())
        async with alice.check_in():
            pass

    async def test_all_tokens_of_a_person_are_voided_at_once(self, world: World) -> None:
        """An operator who signs in has no certificate whose revocation would void them."""
        made = [JoinToken.decode(text) for text in (await self.create(world, count=3)).tokens]
        assert await self.void(world, created_by="oidc:dora") == 0
        assert await self.void(world, created_by="admin") == 3
        assert await refused_code(world.enrol_with(made[1], Key())) == ("UNAUTHENTICATED", "token.expired")
        asked = control_pb2.ListAuditRequest(action="token.void")
        found = (await world.operator.control.ListAudit(asked, timeout=WAIT_S)).entries
        assert [(one.subject, one.detail) for one in found] == [
            ("made by admin", "3 void"),
            ("made by oidc:dora", "0 void"),
        ]

    async def test_with_an_unknown_token_none_is_voided(self, world: World) -> None:
        known = JoinToken.decode((await self.create(world)).tokens[0])
        assert await refused_code(self.void(world, known.token_id, "nothing")) == ("NOT_FOUND", "token.missing")
        await world.enrol_with(known, Key())

    @pytest.mark.parametrize("asked", [{}, {"token_ids": ["a"], "created_by": "b"}, {"token_ids": ["a"] * 1001}])
    async def test_what_is_voided_is_said_in_one_way(self, world: World, asked: dict[str, Any]) -> None:
        voiding = world.operator.control.VoidTokens(control_pb2.VoidTokensRequest(**asked), timeout=WAIT_S)
        assert await refused_code(voiding) == ("INVALID_ARGUMENT", "token.which")

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"count": 0}, "token.request"),
            ({"count": 1001}, "token.request"),
            ({"kind": 0}, "token.request"),
            ({"kind": 9}, "token.request"),
            ({"organisation": "Acme Inc"}, "identity.name"),
            ({"lifetime_s": 0.0}, "token.lifetime"),
            ({"lifetime_s": float("nan")}, "token.lifetime"),
            ({"lifetime_s": 1e9}, "token.lifetime"),
        ],
    )
    async def test_impossible_tokens(self, world: World, changes: dict[str, Any], code: str) -> None:
        assert await refused_code(self.create(world, **changes)) == ("INVALID_ARGUMENT", code)


class TestParticipants:
    async def listed(self, world: World, **asked: Any) -> tuple[list[str], str]:
        request = control_pb2.ListParticipantsRequest(**asked)
        answer = await world.operator.control.ListParticipants(request, timeout=WAIT_S)
        return [row.participant for row in answer.participants], answer.next

    async def test_all_are_listed_page_by_page(
        self, world: World, alice: Participant, bob: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = sorted([alice.name, bob.name])
        assert await self.listed(world) == ([first, second], "")
        monkeypatch.setattr(operator_handlers, "MAX_LISTED", 1)
        assert await self.listed(world, limit=2) == ([first], first)
        assert await self.listed(world, after=first) == ([second], second)
        assert await self.listed(world, after=second) == ([], "")

    async def test_the_list_may_be_of_some(self, world: World, alice: Participant, bob: Participant) -> None:
        assert await self.listed(world, organisation="beta") == ([bob.name], "")
        assert await self.listed(world, connected=True) == ([], "")
        async with alice.check_in(), bob.check_in():
            first, second = sorted([alice.name, bob.name])
            assert await self.listed(world, connected=True, limit=1) == ([first], first)
            assert await self.listed(world, connected=True, after=first) == ([second], "")
            assert await self.listed(world, connected=True, organisation="beta") == ([bob.name], "")

    async def test_what_is_known_of_them(self, world: World, alice: Participant) -> None:
        await play(world, alice)
        answer = await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
        (row,) = answer.participants
        assert (row.organisation, row.kind) == ("acme", enrolment_pb2.PARTICIPANT_KIND_EDGE)
        assert (row.times_selected, row.times_reported) == (1, 1)

    async def test_revoking_is_for_good_and_may_be_repeated(self, world: World, alice: Participant) -> None:
        reason = "lost laptop" + "!" * 5000  # of which the beginning is kept
        request = control_pb2.RevokeParticipantRequest(participant=alice.name, reason=reason)
        first = await world.operator.control.RevokeParticipant(request, timeout=WAIT_S)
        again = await world.operator.control.RevokeParticipant(request, timeout=WAIT_S)
        assert first.participant.revoked_at == again.participant.revoked_at > 0.0
        stranger = control_pb2.RevokeParticipantRequest(participant="pzzzzzzzzzzzz")
        call = world.operator.control.RevokeParticipant(stranger, timeout=WAIT_S)
        assert await refused_code(call) == ("NOT_FOUND", "participant.missing")


async def test_the_server_tells_of_itself(world: World, alice: Participant) -> None:
    async with alice.check_in():
        info = await world.operator.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=WAIT_S)
    assert (info.version, info.protocol) == (atoll.server.__version__, PROTOCOL)
    assert (info.connected, info.workers) == (1, 1)
    assert info.now >= info.started_at
    assert info.disk_free_bytes > 0
    assert info.disk_reserve_bytes == 256 << 20
    assert list(info.evaluators) == []


async def test_storage_is_pruned_on_request(tmp_path: Path) -> None:
    async with World(tmp_path / "data") as world:
        blobs = DirectoryBlobStore(tmp_path / "data" / "blobs")
        with blobs.create() as writer:
            writer.write(b"nobody's")
            name = writer.commit().name
        os.utime(blobs.path_of(name), (0, 0))
        for dry_run, left in ((True, True), (False, False)):
            request = control_pb2.PruneStorageRequest(dry_run=dry_run)
            found = await world.operator.control.PruneStorage(request, timeout=WAIT_S)
            assert [(one.kind, one.count) for one in found.pruned] == [("models", 1)]
            assert blobs.exists(name) is left


@pytest.mark.parametrize(
    ("took_s", "asked_s", "pause_s"),
    [
        (0.0, 0.0, control.WATCH_INTERVAL_S),
        (0.001, 2.0, 2.0),
        (1.0, 2.0, 4.0),
        (0.0, 1e9, control.MAX_WATCH_PACE_S),
        (0.0, float("nan"), control.WATCH_INTERVAL_S),
        (0.0, -5.0, control.WATCH_INTERVAL_S),
    ],
)
def test_a_watcher_sets_the_pace_within_bounds(took_s: float, asked_s: float, pause_s: float) -> None:
    assert control._watch_pause_s(took_s, asked_s) == pause_s
