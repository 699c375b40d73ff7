"""Sessions against a real gRPC server on loopback: rounds, refusals, faults, the end."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import (
    Evaluation,
    Model,
    NotPermittedError,
    Policy,
    PublicError,
    Task,
    TaskKind,
    UnreachableError,
    Update,
)
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.session import Session
from atoll.client.events import Connected, Disconnected, Failed, Finished, Invited, Reported, Stopped, Trained
from atoll.wire.chunks import ElementRange, parse_upload, range_to_proto, update_digest
from atoll.wire.digest import INLINE_BYTES
from atoll.wire.encoding import Encoding, as_received, decode
from atoll.wire.status import ErrorDetail, Fault, Recovery
from atoll.wire.v1 import participation_pb2 as part
from tests.client.conftest import Start
from tests.client.harness import FAST, MODEL, AddOne, Federation, Gated, running
from tests.patience import WAIT_S

SIZE = sum(array.size for array in MODEL.values())
ACCEPTED, DECLINED, FAILED = (
    part.TaskReply.VERDICT_ACCEPTED,
    part.TaskReply.VERDICT_DECLINED,
    part.TaskReply.VERDICT_FAILED,
)


class Evaluating(AddOne):
    def evaluate(self, model: Model, task: Task) -> Evaluation:
        self.tasks.append(task)
        return Evaluation({"mean": float(model["weight"].mean())}, weight=5)


class Counting(AddOne):
    """The update of element e of the model is (e + 1) / 2048."""

    def fit(self, model: Model, task: Task) -> Update:
        self.tasks.append(task)
        flat = np.arange(1, model.layout.size + 1, dtype=np.float32) / 2048
        delta = {span.spec.name: flat[span.start : span.stop].reshape(span.spec.shape) for span in model.layout.spans}
        return Update(delta=delta, weight=7)


def _elements(span: ElementRange) -> list[int]:
    return [span.offset + i * span.stride + j for i in range(span.count) for j in range(span.block)]


async def accepted(server: Federation) -> None:
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (ACCEPTED, "")


# -- rounds -----------------------------------------------------------------------------------------------------------


async def test_one_round(server: Federation, start: Start) -> None:
    trainer = AddOne()
    run = start(trainer, max_rounds=1, labels={"site": "a"})
    hello = await server.hello()
    assert (hello.examples, hello.can_evaluate, dict(hello.labels), list(hello.resuming)) == (
        7,
        False,
        {"site": "a"},
        [],
    )
    assert ("atoll-insecure-participant", "p1") in server.metadata
    server.invite(2, settings={"lr": 0.5, "epochs": 3})
    await accepted(server)
    report = await server.report()
    assert (report.weight, report.partial, report.round.round) == (7, False, 2)
    np.testing.assert_array_equal(server.update_of(report), 1.0)
    task = trainer.tasks[0]
    assert (task.run_name, task.round, task.rounds_total, task.cohort_size, task.kind) == (
        "demo",
        2,
        3,
        2,
        TaskKind.TRAIN,
    )
    assert (task.settings.number("lr"), task.settings.integer("epochs")) == (0.5, 3)
    assert 0 < task.remaining_s <= WAIT_S
    summary = await run.finished()
    assert (summary.reported, summary.declined, summary.failed) == (1, 0, 0)
    assert trainer.closed == 1
    assert [type(event) for event in run.events if isinstance(event, Connected | Invited | Reported | Finished)] == [
        Connected, Invited, Reported, Finished,
    ]  # fmt: skip


async def test_rounds_follow_one_another_on_one_stream(server: Federation, start: Start) -> None:
    start(AddOne())
    await server.hello()
    for number in range(3):
        server.set_model({name: array + number for name, array in MODEL.items()})
        server.invite(number)
        await accepted(server)
        report = await server.report()
        np.testing.assert_array_equal(server.update_of(report), 1.0)
    assert server.hellos.empty()


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_the_encoding_asked_for_is_used(server: Federation, start: Start, encoding: Encoding) -> None:
    start(AddOne())
    server.invite(encoding=encoding)
    report = await server.report()
    update = server.update_of(report)
    np.testing.assert_array_equal(update, as_received(np.ones(update.size, np.float32), encoding))
    np.testing.assert_allclose(update, 1.0, rtol=1e-6)
    assert {header.encoding for header in server.uploads[report.upload_id].headers.values()} == {encoding}


@pytest.mark.parametrize(
    "ranges",
    [
        [ElementRange.run(1, 2)],
        [ElementRange.run(SIZE - 300, 300), ElementRange(1, 1, 3, 4)],
        [ElementRange.run(0, SIZE)],
    ],
    ids=["one run", "two ranges", "everything"],
)
async def test_only_the_elements_asked_for_are_sent(
    server: Federation, start: Start, ranges: list[ElementRange]
) -> None:
    trainer = Counting()
    start(trainer)
    server.invite(ranges=map(range_to_proto, ranges))
    await accepted(server)
    report = await server.report()
    assert trainer.tasks[0].ranges == tuple(ranges)
    found: dict[int, float] = {}
    upload = server.uploads[report.upload_id]
    for offset, header in upload.headers.items():
        found.update(zip(_elements(header.range), decode(upload.payloads[offset], header.encoding), strict=True))
    assert found == {element: (element + 1) / 2048 for span in ranges for element in _elements(span)}
    assert report.digest == update_digest(list(upload.headers.values()))


async def test_a_small_part_of_a_large_model_comes_along_with_its_report(tmp_path: Path) -> None:
    elements = INLINE_BYTES  # of 4 bytes each: the model is downloaded, and its update would be uploaded
    async with Federation({"first": np.zeros(elements, np.float32), "second": np.zeros(8, np.float32)}) as server:
        run = running(server, Counting(), tmp_path / "state", max_rounds=1)
        span = ElementRange.run(elements, 8)
        server.invite(ranges=[range_to_proto(span)])
        report = await server.report()
        chunk = parse_upload(report.update)
        assert chunk.header.range == span
        expected = (elements + np.arange(8) + 1) / 2048
        np.testing.assert_array_equal(decode(chunk.payload, chunk.header.encoding), expected)
        assert server.download_starts == [0]
        assert not server.upload_streams
        await run.stop()


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([ElementRange.run(SIZE, 1)], "the layout ends at"),
        ([ElementRange.run(0, 2), ElementRange.run(1, 1)], "named twice"),
    ],
)
async def test_elements_that_the_model_does_not_have_are_declined(
    server: Federation, start: Start, ranges: list[ElementRange], problem: str
) -> None:
    start(AddOne())
    server.invite(ranges=map(range_to_proto, ranges))
    reply = await server.reply()
    assert reply.verdict == DECLINED
    assert problem in reply.reason


async def test_the_model_is_downloaded_once(server: Federation, start: Start) -> None:
    start(AddOne())
    for number in range(3):
        server.invite(number)
        await server.report()
    assert server.download_starts == [0]


async def test_an_evaluation_round_uploads_nothing(server: Federation, start: Start) -> None:
    start(Evaluating())
    assert (await server.hello()).can_evaluate
    server.invite(kind=part.Participate.KIND_EVALUATE)
    await accepted(server)
    report = await server.report()
    assert (report.upload_id, report.digest, report.weight, report.evaluation_weight) == ("", "", 0, 5)
    assert report.evaluation["mean"] == pytest.approx(MODEL["weight"].mean())
    assert not server.uploads


async def test_evaluation_may_come_with_training(server: Federation, start: Start) -> None:
    start(Evaluating())
    server.invite(evaluate=True)
    report = await server.report()
    assert (report.weight, report.evaluation_weight, list(report.evaluation)) == (7, 5, ["mean"])


async def test_a_participant_that_cannot_evaluate_trains_without_evaluating(server: Federation, start: Start) -> None:
    start(AddOne())
    server.invite(evaluate=True)
    assert (await server.report()).evaluation_weight == 0


async def test_work_stops_before_the_deadline_and_reports_as_partial(server: Federation, start: Start) -> None:
    """In the second round, whose model is there already: a download must end before the deadline, too."""
    trainer = Gated()
    start(trainer)
    server.invite(0)
    await trainer.training()
    trainer.release.set()
    assert not (await server.report()).partial
    trainer.release.clear()
    server.invite(1, remaining_s=0.6)
    assert (await server.report()).partial
    assert trainer.tasks[1].stop_reason == "the deadline is near"
    assert server.download_starts == [0]


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_policy_declines_before_anything_is_downloaded(server: Federation, start: Start) -> None:
    run = start(AddOne(), policy=Policy(min_cohort=3), max_rounds=1)
    server.invite()
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (DECLINED, "policy: cohort of 2, at least 3 wanted")
    assert not server.download_starts
    assert (await run.finished()).declined == 1


class Broken(AddOne):
    def __init__(self, update: Update | BaseException) -> None:
        super().__init__()
        self.update = update

    def fit(self, model: Model, task: Task) -> Update:
        super().fit(model, task)
        if isinstance(self.update, BaseException):
            raise self.update
        return self.update


def weights(**changes: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    return {**MODEL, **changes}


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (ValueError("no data"), "fit raised ValueError: no data"),
        (PublicError("the sensor is unplugged"), "PublicError: the sensor is unplugged"),
        (SystemExit(3), "fit raised SystemExit: 3"),
        (KeyboardInterrupt(), "fit raised KeyboardInterrupt"),
        (Update(weights=MODEL), "nothing was trained on"),
        (Update(weights=MODEL, weight=101), "101, above the 100"),
        (Update(weights={"weight": MODEL["weight"]}, weight=1), "the update lacks the tensor 'bias'; the model has"),
        (Update(weights=weights(bias=np.zeros(3)), weight=1), "'bias' has shape \\[3\\]"),
        (Update(weights=weights(bias=np.full(30, np.nan, np.float32)), weight=1), "'bias' is nan at \\[0\\]"),
        (Update(weights=weights(weight=MODEL["weight"] + 33), weight=1), "'weight' is 33.0 at \\[0, 0\\]"),
        (Update(weight=1), "either weights"),
    ],
)
async def test_a_trainer_that_fails_says_why(
    server: Federation, start: Start, update: Update | BaseException, message: str
) -> None:
    run = start(Broken(update), policy=Policy(errors="text"), max_rounds=1)
    server.invite()
    await accepted(server)
    reply = await server.reply()
    assert reply.verdict == FAILED
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reply.reason)
    assert (await run.finished()).failed == 1
    assert server.reports.empty()


@pytest.mark.parametrize("error", [ValueError("once"), SystemExit(1), KeyboardInterrupt()])
async def test_a_failed_round_does_not_end_the_session(server: Federation, start: Start, error: BaseException) -> None:
    trainer = Broken(error)
    start(trainer)
    server.invite(0)
    await accepted(server)
    assert (await server.reply()).verdict == FAILED
    trainer.update = Update(weights=MODEL, weight=1)
    server.invite(1)
    await accepted(server)
    np.testing.assert_array_equal(server.update_of(await server.report()), 0.0)


class Exiting(Evaluating):
    def evaluate(self, model: Model, task: Task) -> Evaluation:
        super().evaluate(model, task)
        raise SystemExit("no data")


async def test_an_evaluation_that_exits_fails_its_round_alone(server: Federation, start: Start) -> None:
    start(Exiting())
    for number in range(2):
        server.invite(number, kind=part.Participate.KIND_EVALUATE)
        await accepted(server)
        reply = await server.reply()
        assert (reply.verdict, "evaluate raised SystemExit (" in reply.reason) == (FAILED, True)


async def test_an_invitation_that_cannot_be_read_is_declined(server: Federation, start: Start) -> None:
    start(AddOne())
    message = server.participate()
    message.encoding = 99  # type: ignore[assignment]  # of a newer version
    server.push(part.CheckInResponse(participate=message))
    reply = await server.reply()
    assert (reply.verdict, "encoding 99" in reply.reason) == (DECLINED, True)


async def test_another_run_is_declined_while_busy(server: Federation, start: Start) -> None:
    trainer = Gated()
    start(trainer)
    server.invite(0)
    await accepted(server)
    await trainer.training()
    server.invite(4, run="r2")
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (DECLINED, "busy with run r1 round 1")
    trainer.release.set()
    await server.report()


class Deaf(Gated):
    """Trains until the test ends it, and ignores stop signals."""

    def fit(self, model: Model, task: Task) -> Update:
        self._loop.call_soon_threadsafe(self.started.set)
        assert self.release.wait(WAIT_S)
        return AddOne.fit(self, model, task)


async def test_another_run_waits_for_work_that_is_not_wanted_any_more(server: Federation, start: Start) -> None:
    """An operator cancels a run and submits it again: the training code still ends in its own time."""
    trainer = Deaf()
    start(trainer)
    server.invite(0)
    await accepted(server)
    await trainer.training()
    server.stop(0)
    server.invite(4, run="r2")
    server.invite(9, run="r3")  # one too many: its answer shows that the others have arrived
    assert (await server.reply()).reason == "busy with run r1 round 1"
    trainer.release.set()
    await accepted(server)


async def test_another_run_that_follows_the_report_before_its_answer_waits_for_it(
    server: Federation, start: Start
) -> None:
    """The server has counted the report, and may draw its sender for another run at once."""
    server.faults.hold_report = asyncio.Event()
    start(AddOne())
    server.invite(0)
    await accepted(server)
    await server.report()
    server.invite(4, run="r2")
    server.invite(5, run="r3")  # one can wait
    reply = await server.reply()
    assert (reply.key.run, reply.verdict) == ("r3", DECLINED)
    server.faults.hold_report.set()
    reply = await server.reply()
    assert (reply.key.run, reply.verdict) == ("r2", ACCEPTED)


# -- pushed changes ---------------------------------------------------------------------------------------------------


async def test_stop_ends_training_and_nothing_is_sent(server: Federation, start: Start) -> None:
    trainer = Gated()
    run = start(trainer)
    server.invite(0)
    await accepted(server)
    await trainer.training()
    server.stop(0, reason="over-selected")
    server.invite(1)
    await accepted(server)
    assert [event.reason for event in run.of(Stopped)] == ["over-selected"]
    assert trainer.tasks[0].stop_reason == "over-selected"
    assert (await server.report()).round.round == 1
    assert server.reports.empty()


@pytest.fixture
async def small() -> AsyncIterator[Federation]:
    """A federation whose model and updates are small enough to be sent inside other messages."""
    async with Federation({"weight": np.arange(12, dtype=np.float32).reshape(3, 4)}) as federation:
        yield federation


async def small_round(small: Federation, tmp_path: Path, **changes: Any) -> Trained:
    """One round of that federation; ``changes`` set how the invitation contains the model."""
    invitation = small.participate(0)
    del invitation.inputs[:]
    invitation.inputs.append(small.inline(**changes))
    trainer = AddOne()
    run = running(small, trainer, tmp_path)
    small.push(part.CheckInResponse(participate=invitation))
    await accepted(small)
    report = await small.report()
    np.testing.assert_array_equal(small.update_of(report), 1.0)
    (trained,) = await run.saw(Trained)
    await run.stop()
    return trained


async def test_a_small_model_and_update_take_no_calls_of_their_own(small: Federation, tmp_path: Path) -> None:
    await small_round(small, tmp_path)
    assert (small.manifests, small.upload_streams) == (0, [])


@pytest.mark.parametrize("changes", [{"content": b"x" * 48}, {"chunk_bytes": 0}, {"chunk_bytes": 2048}])
async def test_what_came_along_and_is_not_the_model_is_downloaded_instead(
    small: Federation, tmp_path: Path, changes: dict[str, Any]
) -> None:
    await small_round(small, tmp_path, **changes)
    assert small.manifests == 1


async def test_stop_with_a_late_report_welcome_still_reports(server: Federation, start: Start) -> None:
    trainer = Gated()
    start(trainer)
    server.invite(0)
    await trainer.training()
    server.stop(0, late=True)
    report = await server.report()
    assert report.partial


async def test_a_stop_for_another_round_changes_nothing(server: Federation, start: Start) -> None:
    trainer = Gated()
    start(trainer)
    server.invite(1)
    await trainer.training()
    server.stop(0)
    server.invite(1)
    await accepted(server)
    trainer.release.set()
    assert not (await server.report()).partial


async def test_a_newer_round_of_the_run_ends_the_old_which_may_still_count_late(
    server: Federation, start: Start
) -> None:
    trainer = Gated()
    run = start(trainer)
    server.invite(0)
    await accepted(server)
    await trainer.training()
    server.invite(1)
    late = await server.report()
    assert (late.round.round, late.partial) == (0, True)
    await accepted(server)
    await trainer.training()
    trainer.release.set()
    assert (await server.report()).round.round == 1
    assert not run.of(Stopped)


async def test_the_same_invitation_twice_is_one_task_with_a_new_deadline(server: Federation, start: Start) -> None:
    trainer = Gated()
    start(trainer)
    server.invite(0)
    await accepted(server)
    await trainer.training()
    server.invite(0, remaining_s=500.0)
    await accepted(server)
    trainer.release.set()
    await server.report()
    assert len(trainer.tasks) == 1
    assert trainer.tasks[0].remaining_s > 400


async def test_an_invitation_after_the_report_is_not_trained_again(server: Federation, start: Start) -> None:
    trainer = AddOne()
    run = start(trainer)
    server.invite(0)
    await accepted(server)
    await run.saw(Reported)
    server.invite(0)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (FAILED, "already reported")
    assert len(trainer.tasks) == 1


async def test_come_back_is_honoured(server: Federation, start: Start) -> None:
    run = start(AddOne())
    await server.hello()
    server.push(part.CheckInResponse(come_back=part.ComeBack(after_s=0.2, reason="pacing")))
    await server.hello()
    (event,) = run.of(Disconnected)
    assert event.reason == "pacing"
    assert event.retry_in_s == pytest.approx(0.2)


async def test_another_process_with_the_same_identity_is_told_to_the_log(
    server: Federation, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start(AddOne())
    await server.hello()
    order = part.ComeBack(cause=part.ComeBack.CAUSE_TAKEN_OVER, after_s=0.01, reason="another took over")
    server.push(part.CheckInResponse(come_back=order))
    await server.hello()
    assert "another process uses this identity" in caplog.text


async def test_a_stream_that_the_server_closes_is_opened_again(server: Federation, start: Start) -> None:
    run = start(AddOne())
    await server.hello()
    server.end_stream()
    await server.hello()
    assert run.of(Disconnected)[0].reason == "the server closed the stream"


# -- broken transfers -------------------------------------------------------------------------------------------------


async def test_a_broken_upload_sends_only_what_is_missing(server: Federation, start: Start) -> None:
    server.faults.break_upload_after = [5, 3]
    start(AddOne())
    server.invite()
    report = await server.report()
    np.testing.assert_array_equal(server.update_of(report), 1.0)
    chunks = len(server.uploads[report.upload_id].headers)
    assert server.upload_streams == [5, 3, chunks - 8]


async def test_a_broken_download_goes_on_where_it_broke(server: Federation, start: Start) -> None:
    server.faults.break_download_after = [5, 3]
    start(AddOne())
    server.invite()
    await server.report()
    assert server.download_starts == [0, 5, 8]


async def test_a_damaged_chunk_is_asked_for_again(server: Federation, start: Start) -> None:
    server.faults.flip_download = [4]
    start(AddOne())
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert server.download_starts == [0, 4]


async def test_a_stalled_upload_is_broken_off_and_resumed(server: Federation, start: Start) -> None:
    server.faults.stall_uploads = 1
    start(AddOne(), limits=dataclasses.replace(FAST, stall_s=0.5))
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)


async def test_a_lost_answer_is_asked_for_again_with_the_same_report(server: Federation, start: Start) -> None:
    server.faults.lose_report_ack = 2
    start(AddOne())
    server.invite()
    await server.report()
    assert len(server.uploads) == 1
    assert server.reports.empty()


async def test_chunks_that_the_server_lost_are_sent_again(server: Federation, start: Start) -> None:
    server.faults.lose_chunks = 3
    start(AddOne())
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert server.upload_streams[-1] == 3


async def test_a_round_that_moved_on_is_let_go(server: Federation, start: Start) -> None:
    server.faults.refuse_report = ErrorDetail("round.closed", Fault.TIMING, "round 1 is closed")
    run = start(AddOne())
    server.invite(0)
    await accepted(server)
    assert [event.reason for event in await run.saw(Stopped)] == ["round 1 is closed"]
    server.faults.refuse_report = None
    server.invite(1)
    await accepted(server)
    assert (await server.report()).round.round == 1
    assert not run.of(Failed)


async def test_a_refused_report_is_a_failure_with_the_remedy(server: Federation, start: Start) -> None:
    server.faults.refuse_report = ErrorDetail("upload.conflict", Fault.CALLER, "differs", "report it unchanged")
    start(AddOne())
    server.invite()
    await accepted(server)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (FAILED, "RefusedError: differs (report it unchanged)")


# -- a server that goes away ------------------------------------------------------------------------------------------


async def test_training_goes_on_while_the_server_restarts(server: Federation, start: Start) -> None:
    trainer = Gated()
    run = start(trainer)
    await server.hello()
    server.invite(0)
    await accepted(server)
    await trainer.training()
    await server.kill()
    await server.start()
    hello = await server.hello()
    assert [(key.run, key.round) for key in hello.resuming] == [("r1", 0)]
    trainer.release.set()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert len(trainer.tasks) == 1
    assert len(run.of(Connected)) == 2


async def test_a_finished_update_waits_for_the_server(server: Federation, start: Start) -> None:
    trainer = Gated()
    start(trainer)
    await server.hello()
    server.invite(0)
    await trainer.training()
    await server.kill()
    trainer.release.set()
    await server.start()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)


async def test_a_stop_that_comes_with_the_reconnect_ends_the_delivery(server: Federation, start: Start) -> None:
    server.faults.lose_report_ack = 10_000
    run = start(AddOne())
    await server.hello()
    server.invite(0)
    await accepted(server)
    server.stop(0, reason="abandoned")
    assert [event.reason for event in await run.saw(Stopped)] == ["abandoned"]
    server.faults.lose_report_ack = 0
    server.invite(1)
    await accepted(server)
    assert (await server.report()).round.round == 1


async def test_a_restarted_process_trains_again(server: Federation, start: Start) -> None:
    """The update was lost with the first process: the server asks again, and a new upload replaces it."""
    server.faults.lose_report_ack = 10_000
    first = start(AddOne())
    server.invite(0)
    await first.saw(Trained)
    first.task.cancel()
    await first.stop()
    server.faults.lose_report_ack = 0
    server.reported.clear()
    await server.hello()
    start(AddOne())
    assert list((await server.hello()).resuming) == []
    server.invite(0)
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert server.download_starts == [0]


async def test_a_server_out_of_reach_for_too_long_ends_the_session(server: Federation, start: Start) -> None:
    await server.kill()
    run = start(AddOne(), limits=dataclasses.replace(FAST, give_up_after_s=0.2))
    with pytest.raises(UnreachableError, match="was unreachable for"):
        await run.finished()
    assert run.of(Disconnected)


# -- the end ----------------------------------------------------------------------------------------------------------

REVOKED = ErrorDetail("participant.revoked", Fault.CALLER, "p1 was revoked: lost laptop", recovery=Recovery.ENROL)


async def test_a_revoked_participant_is_told_at_check_in(server: Federation, start: Start) -> None:
    server.faults.bar = REVOKED
    run = start(AddOne())
    with pytest.raises(NotPermittedError, match="lost laptop"):
        await run.finished()


async def test_a_revoked_participant_is_told_in_a_transfer(server: Federation, start: Start) -> None:
    trainer = Gated()
    run = start(trainer)
    server.invite()
    await trainer.training()
    server.faults.bar_report = REVOKED
    trainer.release.set()
    with pytest.raises(NotPermittedError, match="lost laptop") as caught:
        await run.finished()
    assert caught.value.exit_code == 4
    assert trainer.closed == 1


async def test_stopping_tells_the_server_and_the_trainer(server: Federation, start: Start) -> None:
    trainer = Gated()
    run = start(trainer)
    server.invite()
    await accepted(server)
    await trainer.training()
    threading.Thread(target=run.session.stop, args=("interrupted",)).start()
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (FAILED, "interrupted")
    assert (await run.finished()).reason == "interrupted"
    assert (trainer.closed, trainer.tasks[0].should_stop) == (1, True)
    assert server.reports.empty()


async def test_leaving_says_nothing_of_the_task_which_a_later_session_takes_up(
    server: Federation, start: Start
) -> None:
    trainer = Gated()
    run = start(trainer)
    await server.hello()
    server.invite()
    await accepted(server)
    await trainer.training()
    threading.Thread(target=run.session.leave, args=("interrupted",)).start()
    assert (await run.finished()).reason == "interrupted"
    assert (trainer.closed, trainer.tasks[0].should_stop) == (1, True)
    assert (run.of(Failed), server.replies.empty(), server.reports.empty()) == ([], True, True)

    again = start(AddOne())
    assert not (await server.hello()).resuming
    server.invite()
    await accepted(server)
    assert (await server.report()).weight == AddOne.examples
    await again.stop()


@pytest.fixture
def longest_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every random delay as long as possible."""
    monkeypatch.setattr(random.Random, "uniform", lambda _self, _low, high: high)


@pytest.mark.usefixtures("longest_delays")
async def test_an_idle_fleet_spreads_its_return_over_what_the_server_asked_for(
    server: Federation, start: Start
) -> None:
    server.return_spread_s = 4.0
    run = start(AddOne())
    await server.hello()
    await run.saw(Connected)
    await server.kill()
    (lost,) = await run.saw(Disconnected)
    assert lost.retry_in_s == 4.0


@pytest.mark.usefixtures("longest_delays")
async def test_a_fleet_that_grew_meanwhile_spreads_over_the_newest_word(server: Federation, start: Start) -> None:
    server.return_spread_s = 0.5
    run = start(AddOne())
    await server.hello()
    server.push(part.CheckInResponse(return_spread=part.ReturnSpread(return_spread_s=4.0)))
    server.invite()  # answered after what was pushed before
    await run.saw(Reported)
    await server.kill()
    (lost,) = await run.saw(Disconnected)
    assert lost.retry_in_s == 4.0


@pytest.mark.usefixtures("longest_delays")
async def test_a_participant_at_work_comes_back_sooner_than_an_idle_one(server: Federation, start: Start) -> None:
    server.return_spread_s = 40.0
    trainer = Gated()
    run = start(trainer)
    server.invite(return_spread_s=0.02)
    await trainer.training()
    await server.kill()
    lost, *_ = await run.saw(Disconnected)
    assert lost.retry_in_s == 0.02
    await server.start()
    await server.hello()
    assert list((await server.hello()).resuming)


@pytest.mark.usefixtures("longest_delays")
async def test_no_server_can_ask_for_an_endless_absence(server: Federation, start: Start) -> None:
    server.return_spread_s = 1e9
    run = start(AddOne(), limits=dataclasses.replace(FAST, return_spread_s=7.0))
    await run.saw(Connected)
    await server.kill()
    assert (await run.saw(Disconnected))[0].retry_in_s == 7.0


@pytest.mark.parametrize("steps", range(5))
async def test_a_cancellation_is_not_swallowed_by_an_end_that_comes_at_the_same_time(
    server: Federation, tmp_path: Path, steps: int
) -> None:
    """`asyncio.wait_for` does that before Python 3.12 (python/cpython#86296)."""
    session = Session(AddOne(), Endpoint(server.address, None, "p1"), tmp_path)
    pausing = asyncio.create_task(session._pause(60.0))
    await asyncio.sleep(0)
    session._ending.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    wanted = pausing.cancel()
    await asyncio.wait({pausing})
    assert pausing.cancelled() == wanted


async def test_stopping_while_out_of_reach(server: Federation, start: Start) -> None:
    await server.kill()
    run = start(
        AddOne(), limits=dataclasses.replace(FAST, backoff_base_s=60.0, backoff_cap_s=60.0, give_up_after_s=1e6)
    )
    run.session.stop("enough")
    assert (await run.finished()).reason == "enough"


def test_plaintext_stays_on_this_machine() -> None:
    for address in ("127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1"):
        Endpoint(address, None, "p1")
    for address in ("10.0.0.1:1", "example.org:1", "localhost.example.org:1", "[::2]:1"):
        with pytest.raises(Exception, match="not loopback"):
            Endpoint(address, None, "p1")
