import asyncio
import gc
import math
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from atoll.server.ingest.upload_quota import SPARE_CHUNKS, TENSOR_PARTS
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.rpc import transfer
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.transfer import MAX_NAMED_CHUNKS
from atoll.wire.chunks import ElementRange, Held, frame_upload, parse_download, range_from_proto, update_digest
from atoll.wire.digest import BlobManifest
from atoll.wire.messages import manifest_from_proto
from atoll.wire.status import Recovery
from atoll.wire.v1 import control_pb2, participation_pb2, transfer_pb2
from tests.patience import WAIT_S, kept
from tests.server.rpc.world import (
    LAYOUT,
    TRANSFER,
    Caller,
    Participant,
    World,
    chunks_of,
    each,
    frames_of,
    initial_values,
    job,
    refusal,
    refused_code,
    refused_detail,
    update_values,
)

pytestmark = pytest.mark.slow

COUNTED = transfer_pb2.ReportResponse.DISPOSITION_COUNTED
CARRIED = transfer_pb2.ReportResponse.DISPOSITION_CARRIED
DROPPED = transfer_pb2.ReportResponse.DISPOSITION_DROPPED
RoundKey = participation_pb2.RoundKey
VALUES = update_values(1)


async def invited(world: World, *participants: Participant, job_toml: bytes | None = None) -> RoundKey:
    """Check these in for the rest of the test, submit a run, and wait until all are invited."""
    streams = [await world._stack.enter_async_context(one.check_in()) for one in participants]
    await world.submit(job(size=len(participants)) if job_toml is None else job_toml)
    tasks = [await stream.next("participate") for stream in streams]
    key: RoundKey = tasks[0].key
    return key


async def members(world: World, run: str, round_number: int = 0) -> dict[str, tuple[str, str]]:
    answer = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run, members=True), timeout=WAIT_S)
    (shown,) = [one for one in answer.rounds if one.round == round_number]
    return {member.participant: (member.status, member.detail) for member in shown.members}


def uploads_in_memory(run: str) -> list[UploadRef]:
    """References to a run's uploads held anywhere in this process, which is also the server's."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is UploadRef and found.run == run]


class TestDownload:
    async def download(self, who: Caller, blob: str, **asked: Any) -> list[tuple[int, bytes]]:
        stream: Any = who.channel.unary_stream(
            f"{TRANSFER}/Download", request_serializer=transfer_pb2.DownloadRequest.SerializeToString
        )
        found = []
        async with asyncio.timeout(WAIT_S):
            async for message in stream(transfer_pb2.DownloadRequest(blob=blob, **asked)):
                index, payload = parse_download(message)
                found.append((index, bytes(payload)))
        return found

    async def test_a_model_comes_as_it_went(self, world: World) -> None:
        values = np.arange(2000, dtype=np.float32)
        blob = await world.upload_model(values)
        answer = await world.operator.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=blob), timeout=WAIT_S)
        manifest = manifest_from_proto(answer.manifest)
        assert manifest == BlobManifest.of_buffer(values.tobytes(), 1024)
        found = await self.download(world.operator, blob)
        assert [index for index, _ in found] == list(range(manifest.chunk_count))
        assert b"".join(payload for _, payload in found) == values.tobytes()

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ({"first_chunk": 3}, [3, 4, 5, 6, 7]),
            ({"first_chunk": 2, "chunk_count": 2}, [2, 3]),
            ({"first_chunk": 6, "chunk_count": 100}, [6, 7]),
            ({"first_chunk": 8}, []),
            ({"first_chunk": 0, "chunk_count": 2**64 - 1}, list(range(8))),
            ({"chunks": [1, 2, 5, 7]}, [1, 2, 5, 7]),
        ],
    )
    async def test_ranges(self, world: World, asked: dict[str, Any], expected: list[int]) -> None:
        blob = await world.upload_model(np.zeros(2000, np.float32))
        assert [index for index, _ in await self.download(world.operator, blob, **asked)] == expected

    async def test_a_range_beyond_the_blob_is_refused(self, world: World) -> None:
        blob = await world.upload_model()
        call = self.download(world.operator, blob, first_chunk=3)
        assert await refused_code(call) == ("INVALID_ARGUMENT", "download.range")

    @pytest.mark.parametrize(
        "asked",
        [
            {"chunks": [2, 8]},
            {"chunks": [3, 2]},
            {"chunks": [2, 2]},
            {"chunks": [2], "first_chunk": 1},
            {"chunks": [2], "chunk_count": 1},
            {"chunks": list(range(MAX_NAMED_CHUNKS + 1))},
        ],
    )
    async def test_chunks_that_cannot_be_named_are_refused(self, world: World, asked: dict[str, Any]) -> None:
        blob = await world.upload_model(np.zeros(2000, np.float32))
        assert await refused_code(self.download(world.operator, blob, **asked)) == (
            "INVALID_ARGUMENT",
            "download.chunks",
        )

    async def test_downloads_wait_for_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        room = DownloadRoom(4096)
        monkeypatch.setattr(DownloadRoom, "of", lambda *_, **__: room)
        async with World(tmp_path / "data") as world:
            blob = await world.upload_model(np.zeros(2000, np.float32))
            with room.hold("another caller", 4096):
                detail = await refused_detail(self.download(world.operator, blob))
            assert (detail.code, detail.retry_after_s) == ("download.crowded", 5.0)
            assert len(await self.download(world.operator, blob)) == 8
            assert len(room) == 0

    @pytest.mark.parametrize("blob", ["0" * 64, "../../atoll.sqlite3", ""])
    async def test_an_unknown_blob_is_not_found(self, world: World, blob: str) -> None:
        assert await refused_code(self.download(world.operator, blob)) == ("NOT_FOUND", "blob.missing")
        call = world.operator.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=blob), timeout=WAIT_S)
        assert await refused_code(call) == ("NOT_FOUND", "blob.missing")

    async def test_a_damaged_blob_is_reported_and_not_sent(self, world: World) -> None:
        blob = await world.upload_model(np.zeros(2000, np.float32))
        path = world.config.data / "blobs" / blob[:2] / blob
        raw = bytearray(path.read_bytes())
        raw[5000] ^= 1
        path.write_bytes(raw)
        assert [index for index, _ in await self.download(world.operator, blob, chunk_count=4)] == [0, 1, 2, 3]
        assert await refused_code(self.download(world.operator, blob)) == ("DATA_LOSS", "blob.damaged")

    async def test_a_model_is_for_the_members_of_a_round_that_begins_with_it(
        self, world: World, alice: Participant
    ) -> None:
        at, bob = await invited(world, alice), await world.participant()
        run = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=at.run), timeout=WAIT_S)
        blob, other = run.summary.model_blob, await world.upload_model(np.zeros(500, np.float32))
        assert await self.download(alice, blob)
        for who, wanted in ((bob, blob), (alice, other), (bob, "0" * 64)):
            assert await refused_code(self.download(who, wanted)) == ("PERMISSION_DENIED", "blob.member")
            asked = who.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=wanted), timeout=WAIT_S)
            assert await refused_code(asked) == ("PERMISSION_DENIED", "blob.member")

    async def test_models_may_be_shared_with_everyone(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", share_models=True) as world:
            bob = await world.participant()
            assert await self.download(bob, await world.upload_model())


class TestReport:
    async def test_a_report_counts_and_the_same_again_gets_the_same_answer(
        self, world: World, alice: Participant
    ) -> None:
        at = await invited(world, alice)
        first = await alice.report(at, VALUES)
        assert first.disposition == COUNTED
        await world.until(at.run, "finished")
        # The answer was lost, and meanwhile the round and even the run have ended.
        again = await alice.claim(at, first.digest)
        assert again == first
        model = await world.operator.control.GetRunModel(control_pb2.GetRunModelRequest(run=at.run), timeout=WAIT_S)
        assert model.round == 1

    async def test_nothing_of_a_reported_upload_stays_in_memory(self, world: World, alice: Participant) -> None:
        key = await invited(world, alice)
        digest = await alice.send(key, VALUES, 1)
        assert uploads_in_memory(key.run)
        await alice.claim(key, digest)
        assert not uploads_in_memory(key.run)

    async def test_a_small_update_comes_with_its_report(self, world: World, alice: Participant) -> None:
        """Reporting again gives the same answer, in case the first one was lost."""
        at = await invited(world, alice)
        (chunk,), key = chunks_of(VALUES, VALUES.size), alice.upload_key(at)
        update, digest = frame_upload(chunk.header, chunk.payload, key), update_digest([chunk.header])
        first = await alice.claim(at, digest, update=update)
        assert (first.disposition, first.digest) == (COUNTED, digest)
        assert await alice.claim(at, digest, update=update) == first
        assert (await world.until(at.run, "finished")).round.reported == 1

    async def test_an_update_that_comes_along_is_refused_like_any_other(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        (chunk,) = chunks_of(VALUES, VALUES.size)
        digest = update_digest([chunk.header])
        for update, answer in (
            (frame_upload(chunk.header, chunk.payload, alice.upload_key(at, 2)), ("INVALID_ARGUMENT", "upload.key")),
            (frame_upload(chunk.header, chunk.payload), ("INVALID_ARGUMENT", "upload.key")),
            (b"\xff", ("INVALID_ARGUMENT", "wire.invalid")),
            (
                frame_upload(chunk.header, bytes(len(chunk.payload)), alice.upload_key(at)),
                ("INVALID_ARGUMENT", "upload.digest"),
            ),
        ):
            assert await refused_code(alice.claim(at, digest, update=update)) == answer
        assert (await members(world, at.run))[alice.name][0] == "invited"

    async def test_an_update_that_comes_along_and_cannot_be_used_is_rejected(
        self, world: World, alice: Participant
    ) -> None:
        at = await invited(world, alice)
        wrong = VALUES.copy()
        wrong[3] = math.inf
        (chunk,) = chunks_of(wrong, wrong.size)
        call = alice.claim(
            at, update_digest([chunk.header]), update=frame_upload(chunk.header, chunk.payload, alice.upload_key(at))
        )
        assert await refused_code(call) == ("INVALID_ARGUMENT", "update.not_finite")

    async def test_reports_at_the_same_time_get_the_same_answer(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        digest = await alice.send(at, VALUES)
        answers = await asyncio.gather(*(alice.claim(at, digest) for _ in range(5)))
        assert {answer.disposition for answer in answers} == {COUNTED}
        assert (await members(world, at.run))[alice.name][0] == "reported"

    async def test_another_update_under_the_same_key_is_refused(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        at = await invited(world, alice, bob)
        await alice.report(at, VALUES)
        call = alice.claim(at, "0" * 64, number=2)
        assert await refused_code(call) == ("FAILED_PRECONDITION", "report.conflict")
        upload = alice.send(at, update_values(2), 2)
        assert await refused_code(upload) == ("FAILED_PRECONDITION", "upload.reported")
        assert (await members(world, at.run))[alice.name][0] == "reported"

    async def test_the_same_update_with_another_weight_spoils_nothing(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        at = await invited(world, alice, bob)
        digest = await alice.send(at, VALUES)
        outcomes = await asyncio.gather(
            alice.claim(at, digest, weight=10),
            alice.claim(at, digest, weight=3),
            bob.report(at, update_values(2)),
            return_exceptions=True,
        )
        assert not isinstance(outcomes[2], BaseException)
        assert any(not isinstance(outcome, BaseException) for outcome in outcomes[:2])
        assert (await world.until(at.run, "finished")).round.reported == 2

    async def test_an_upload_that_is_not_whole_is_completed(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        chunks, key = chunks_of(VALUES), alice.upload_key(at)
        await alice.upload(frames_of(key, chunks[:2]))
        digest = update_digest([chunk.header for chunk in chunks])
        assert await refused_code(alice.claim(at, digest)) == ("INVALID_ARGUMENT", "upload.incomplete")
        held = Held(map(range_from_proto, (await alice.status(at)).held))
        assert [chunk.header.range in held for chunk in chunks] == [True, True, False]
        answer = await alice.upload(frames_of(key, chunks[2:]))
        assert (answer.chunks, answer.payload_bytes) == (1, 200)
        assert (await alice.claim(at, digest)).disposition == COUNTED

    async def test_statuses_are_made_off_the_event_loop_one_of_a_participant_at_a_time(
        self, world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at = await invited(world, alice)
        await alice.upload(frames_of(alice.upload_key(at), chunks_of(VALUES, 1)[::-1]))
        busy, most, threads, lock = 0, 0, set(), threading.Lock()

        def watched(*args: Any) -> bytes:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
                threads.add(threading.get_ident())
            try:
                return status_of(*args)
            finally:
                with lock:
                    busy -= 1

        status_of = transfer._status
        monkeypatch.setattr(transfer, "_status", watched)
        for answer in await asyncio.gather(*(alice.status(at) for _ in range(16))):
            assert [range_from_proto(span) for span in answer.held] == [ElementRange.run(0, LAYOUT.size)]
        assert most == 1
        assert threads
        assert threading.get_ident() not in threads

    async def test_a_status_is_still_being_made_after_its_caller_has_hung_up(
        self, world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at = await invited(world, alice)
        begun, began, go = [], threading.Event(), threading.Event()

        def slow(*args: Any) -> bytes:
            begun.append(args)
            began.set()
            assert go.wait(WAIT_S)
            return status_of(*args)

        status_of = transfer._status
        monkeypatch.setattr(transfer, "_status", slow)
        first = asyncio.ensure_future(alice.status(at))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        first.cancel()
        second = asyncio.ensure_future(alice.status(at))
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert (len(done), len(begun)) == (0, 1)
        go.set()
        await second
        assert len(begun) == 2

    async def test_the_chunks_of_all_uploads_for_a_round_have_a_limit(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        most, tiny = SPARE_CHUNKS + len(LAYOUT.tensors) * TENSOR_PARTS + 256, chunks_of(VALUES, 1)
        whole, rest = divmod(most, len(tiny))
        for number in range(1, whole + 1):
            await alice.upload(frames_of(alice.upload_key(at, number), tiny))
        frames = frames_of(alice.upload_key(at, whole + 1), tiny)
        assert await refused_code(alice.upload(frames)) == ("RESOURCE_EXHAUSTED", "upload.chunks")
        held = (await alice.status(at, whole + 1)).held
        assert [range_from_proto(span) for span in held] == [ElementRange.run(0, rest)]

    async def test_an_upload_that_was_never_begun_is_incomplete(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        assert (await alice.status(at)).held == []
        assert await refused_code(alice.claim(at, "0" * 64)) == ("INVALID_ARGUMENT", "upload.incomplete")
        assert await refused_code(alice.claim(at, "0" * 64, number=2**200)) == ("INVALID_ARGUMENT", "upload.id")

    async def test_a_train_round_takes_no_report_without_an_upload(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice, job_toml=job(straggler="max_attempts = 1"))
        call = alice.transfer.Report(transfer_pb2.ReportRequest(round=at, weight=1), timeout=WAIT_S)
        assert await refused_code(call) == ("FAILED_PRECONDITION", "report.refused")
        assert (await world.until(at.run, "failed")).round.members[0].status == "rejected"

    async def test_an_evaluation_takes_metrics_and_no_upload(self, world: World, alice: Participant) -> None:
        stream = await world._stack.enter_async_context(alice.check_in(can_evaluate=True))
        run = await world.submit(job(evaluation="final = true\nbefore_training = false"))
        await alice.report((await stream.next("participate")).key, VALUES)
        task = await stream.next("participate")
        assert task.kind == participation_pb2.Participate.KIND_EVALUATE
        call = alice.send(task.key, VALUES)
        assert await refused_code(call) == ("INVALID_ARGUMENT", "upload.unwanted")
        report = transfer_pb2.ReportRequest(round=task.key, evaluation={"accuracy": 0.75}, evaluation_weight=8)
        answer = await alice.transfer.Report(report, timeout=WAIT_S)
        assert (answer.disposition, answer.digest) == (COUNTED, "")
        seen = await world.until(run, "finished")
        assert dict(seen.round.metrics) == {"eval/accuracy": 0.75, "eval/examples": 8.0}

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"weight": 2**40 + 1}, "report.weight"),
            ({"weight": 2**64 - 1}, "report.weight"),
            ({"evaluation_weight": 2**63}, "report.weight"),
            ({"metrics": {"loss": math.nan}}, "report.metrics"),
            ({"metrics": {str(number): 1.0 for number in range(65)}}, "report.metrics"),
            ({"evaluation": {str(number): 1.0 for number in range(65)}}, "report.metrics"),
            ({"metrics": {"": 1.0}}, "report.metrics"),
            ({"evaluation": {"x" * 129: 1.0}}, "report.metrics"),
        ],
    )
    async def test_impossible_figures_are_refused_and_may_be_corrected(
        self, world: World, alice: Participant, fields: dict[str, Any], code: str
    ) -> None:
        at = await invited(world, alice)
        digest = await alice.send(at, VALUES)
        assert await refused_code(alice.claim(at, digest, **fields)) == ("INVALID_ARGUMENT", code)
        assert (await alice.claim(at, digest)).disposition == COUNTED

    async def test_a_digest_without_an_upload_is_refused(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        report = transfer_pb2.ReportRequest(round=at, digest="x" * 200_000)
        assert await refused_code(alice.transfer.Report(report, timeout=WAIT_S)) == (
            "INVALID_ARGUMENT",
            "report.digest",
        )

    async def test_more_weight_than_declared_is_refused_for_good(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice, job_toml=job(straggler="max_attempts = 1"))
        found = await refused_detail(alice.report(at, VALUES, weight=11))
        assert (found.code, found.recovery) == ("report.refused", Recovery.NEXT_TASK)
        assert "first report" not in str(found)  # there was none

    async def test_a_value_that_is_not_finite_is_refused_for_good(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice, job_toml=job(straggler="max_attempts = 1"))
        found = await refused_detail(alice.send(at, np.full_like(VALUES, np.nan)))
        assert (found.code, found.recovery) == ("update.not_finite", Recovery.NEXT_TASK)

    async def test_what_is_missing_can_be_sent(self, world: World, alice: Participant) -> None:
        found = await refused_detail(alice.claim(await invited(world, alice), "0" * 64))
        assert (found.code, found.recovery) == ("upload.incomplete", Recovery.CHANGE)

    async def test_another_report_than_the_first_is_a_conflict(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        at = await invited(world, alice, bob)
        await alice.report(at, VALUES)
        found = await refused_detail(alice.claim(at, "0" * 64))
        assert (found.code, found.recovery) == ("report.conflict", Recovery.NEXT_TASK)
        assert "first report counts" in found.remedy


class TestRounds:
    async def test_a_round_is_for_its_members(self, world: World, alice: Participant, bob: Participant) -> None:
        at = await invited(world, alice)
        for call in (bob.send(at, VALUES), bob.status(at), bob.claim(at, "0" * 64)):
            assert await refused_code(call) == ("PERMISSION_DENIED", "round.stranger")

    async def test_a_round_that_has_not_begun_is_refused(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        at.round = 7
        assert await refused_code(alice.send(at, VALUES)) == ("INVALID_ARGUMENT", "round.unknown")

    async def test_an_unknown_run_is_not_found(self, alice: Participant) -> None:
        at = RoundKey(run="rzzzzzzzzzzzz")
        for call in (alice.send(at, VALUES), alice.status(at), alice.claim(at, "0" * 64)):
            assert await refused_code(call) == ("NOT_FOUND", "run.missing")

    @pytest.mark.parametrize("run", ["../..", "", "a/b", "x" * 100_000])
    async def test_a_name_that_is_none_goes_nowhere_near_the_disk(
        self, world: World, alice: Participant, run: str
    ) -> None:
        at = RoundKey(run=run)
        assert await refused_code(alice.send(at, VALUES)) == ("INVALID_ARGUMENT", "spool.name")
        unknown = {"INVALID_ARGUMENT", "NOT_FOUND"}
        # A request for a status has a small limit, which a name of 100,000 characters exceeds.
        assert (await refused_code(alice.status(at)))[0] in ({"RESOURCE_EXHAUSTED"} if len(run) > 10_000 else unknown)
        assert (await refused_code(alice.claim(at, "0" * 64)))[0] in unknown
        assert list((world.config.data / "spool").iterdir()) == []

    async def test_a_late_report_is_recorded_and_dropped(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        both = job().replace(b"quorum = 1", b"quorum = 1\nover_selection = 2.0\nmin_available = 2")
        at = await invited(world, alice, bob, job_toml=both.replace(b"rounds = 1", b"rounds = 2"))
        await alice.report(at, VALUES)
        await world.until(at.run, "open")  # the next round
        answer = await bob.claim(at, "0" * 64)
        assert answer.disposition == DROPPED
        status, detail = (await members(world, at.run))[bob.name]
        assert status == "late"
        assert "after the round was over" in detail
        assert await refused_code(bob.send(at, VALUES)) == ("ABORTED", "round.over")

    async def test_a_straggler_of_a_forgotten_round_is_late_not_a_stranger(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        """PERMISSION_DENIED would end its session permanently."""
        both = job(rounds=4).replace(b"quorum = 1", b"quorum = 1\nover_selection = 2.0\nmin_available = 2")
        at = await invited(world, alice, bob, job_toml=both)
        for number in range(3):
            await alice.report(RoundKey(run=at.run, round=number), VALUES)
            async with asyncio.timeout(WAIT_S):
                async for seen in world.operator.control.WatchRun(control_pb2.WatchRunRequest(run=at.run)):
                    if seen.round.round > number and seen.round.phase == "open":
                        break
        assert await refused_code(bob.send(at, VALUES)) == ("ABORTED", "round.over")
        assert (await bob.claim(at, "0" * 64)).disposition == DROPPED

    async def test_a_report_to_an_ended_run_is_late(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        await world.operator.control.CancelRun(control_pb2.CancelRunRequest(run=at.run), timeout=WAIT_S)
        assert await refused_code(alice.send(at, VALUES)) == ("ABORTED", "run.ended")
        assert (await alice.claim(at, "0" * 64)).disposition == DROPPED

    async def test_a_late_report_may_be_carried(self, world: World, alice: Participant, bob: Participant) -> None:
        text = job(rounds=2, straggler='late = "carry"').replace(
            b"quorum = 1", b"quorum = 1\nover_selection = 2.0\nmin_available = 2"
        )
        at = await invited(world, alice, bob, job_toml=text)
        await alice.report(at, VALUES)
        answer = await bob.report(at, update_values(2))
        assert answer.disposition == CARRIED
        assert await bob.claim(at, answer.digest) == answer
        assert "carried" in (await members(world, at.run))[bob.name][1]


class TestUpload:
    async def test_an_empty_stream_is_no_upload(self, alice: Participant) -> None:
        answer = await alice.upload(each([]))
        assert (answer.chunks, answer.payload_bytes) == (0, 0)

    @pytest.mark.parametrize(
        "message", [b"\xff", b"\x1a\xff\xff\xff\xff", b"rubbish" * 100, b"\x0a" + b"\xff" * 20, b"\x00"]
    )
    async def test_garbage_is_the_callers_fault(self, world: World, alice: Participant, message: bytes) -> None:
        await invited(world, alice)
        assert await refused_code(alice.upload(each([message]))) == ("INVALID_ARGUMENT", "wire.invalid")

    async def test_garbage_in_unary_calls_is_the_callers_fault(self, alice: Participant) -> None:
        for method in ("GetManifest", "GetUploadStatus", "Report"):
            call = alice.raw(f"{TRANSFER}/{method}", b"\xff\xff\xff")
            assert await refused_code(call) == ("INVALID_ARGUMENT", "wire.message")

    async def test_the_first_message_names_the_upload(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        chunks, key = chunks_of(VALUES), alice.upload_key(at)
        assert await refused_code(alice.upload(frames_of(None, chunks))) == ("INVALID_ARGUMENT", "upload.key")
        odd = replace(key, tensor_set="control")
        assert await refused_code(alice.upload(frames_of(odd, chunks))) == ("INVALID_ARGUMENT", "upload.tensor_set")
        odd = replace(key, upload_id="../../../x")
        assert await refused_code(alice.upload(frames_of(odd, chunks))) == ("INVALID_ARGUMENT", "upload.id")

    async def test_a_stream_feeds_one_upload(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        chunks = chunks_of(VALUES)
        frames = frames_of(alice.upload_key(at), chunks[:1]) + frames_of(alice.upload_key(at, 2), chunks[1:])
        assert await refused_code(alice.upload(frames)) == ("INVALID_ARGUMENT", "upload.key")
        assert len((await alice.status(at)).held) == 1

    async def test_chunks_beyond_the_layout_are_refused(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        long = np.zeros(LAYOUT.size + 1, np.float32)
        assert await refused_code(alice.send(at, long)) == ("INVALID_ARGUMENT", "upload.range")

    async def test_a_value_that_cannot_be_summed_rejects_the_member(
        self, world: World, alice: Participant, bob: Participant
    ) -> None:
        at = await invited(world, alice, bob, job_toml=job(size=2, quorum=1))
        bad = VALUES.copy()
        bad[7] = np.inf
        assert await refused_code(alice.send(at, bad)) == ("INVALID_ARGUMENT", "update.not_finite")
        assert await refused_code(alice.send(at, VALUES, 2)) == ("ABORTED", "round.over")
        await bob.report(at, VALUES)
        await world.until(at.run, "finished")
        status, detail = (await members(world, at.run))[alice.name]
        assert status == "rejected"
        assert "not finite" in detail

    @pytest.mark.parametrize("idle", [False, True])
    async def test_a_revoked_participant_is_cut_off_within_five_seconds(
        self, world: World, alice: Participant, idle: bool
    ) -> None:
        at = await invited(world, alice)
        (chunk,) = chunks_of(VALUES)[:1]
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield frames_of(alice.upload_key(at), [chunk])[0]
            begun.set()
            while True:
                await asyncio.sleep(3600.0 if idle else 0.05)
                yield frames_of(None, [chunk])[0]

        upload = asyncio.ensure_future(alice.upload(endless()))
        await asyncio.wait_for(begun.wait(), WAIT_S)
        await world.operator.control.RevokeParticipant(
            control_pb2.RevokeParticipantRequest(participant=alice.name), timeout=WAIT_S
        )
        since = time.monotonic()
        found = await refusal(upload)
        assert kept(time.monotonic() - since, 5.0)
        while found.status is grpc.StatusCode.INTERNAL:  # gRPC's client fails so if the refusal comes while it writes
            found = await refusal(alice.upload(each(frames_of(alice.upload_key(at), [chunk]))))
        assert found.detail is not None, found
        assert (found.status.name, found.detail.code) == ("UNAUTHENTICATED", "certificate.revoked")

    async def test_the_initial_model_is_what_was_uploaded(self, world: World, alice: Participant) -> None:
        at = await invited(world, alice)
        answer = await world.operator.control.GetRunModel(
            control_pb2.GetRunModelRequest(run=at.run, round=0), timeout=WAIT_S
        )
        found = await TestDownload().download(alice, answer.model.blob)
        assert b"".join(payload for _, payload in found) == initial_values().tobytes()
