"""Duties of a client, scenario by scenario; docs/protocol.md gives the reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from atoll.wire.messages import setting_to_proto
from atoll.wire.status import ErrorDetail, Fault, Recovery
from atoll.wire.v1 import participation_pb2 as part
from atoll.wire.v1 import tensors_pb2
from tests.conformance.server import ConformanceServer, expect

ACCEPTED, DECLINED = part.TaskReply.VERDICT_ACCEPTED, part.TaskReply.VERDICT_DECLINED
CAUSE = part.ComeBack
_QUIET_S = 1.0
"""Seconds for which a client is watched for forbidden actions."""


@dataclass(frozen=True)
class Scenario:
    """One part of the contract.

    ``expects`` describes what the client must do; ``play`` raises ``BrokenContractError`` if it does not.
    """

    name: str
    expects: str
    play: Callable[[ConformanceServer], Awaitable[None]]


SCENARIOS: list[Scenario] = []


def scenario(expects: str) -> Callable[[Callable[[ConformanceServer], Awaitable[None]]], None]:
    """Add a scenario; its name is the function's."""

    def add(play: Callable[[ConformanceServer], Awaitable[None]]) -> None:
        SCENARIOS.append(Scenario(play.__name__.replace("_", "-"), expects, play))

    return add


@scenario("asks again with the same key after the answer to its enrolment was lost, then checks in")
async def enrolment(server: ConformanceServer) -> None:
    hello = await server.greeted()
    expect(server.lose_enrolments == 0, "Enrol was not called again")
    expect(hello.protocol >= 1, f"Hello.protocol is {hello.protocol}")
    expect(tensors_pb2.ENCODING_FLOAT32 in hello.encodings, "Hello.encodings lacks float32, which every client has")
    expect(hello.examples >= 1, "Hello.examples is 0: nothing that it reports would count")


@scenario("accepts, downloads the model, uploads every element once, and reports with the digest of its chunks")
async def ordinary_round(server: ConformanceServer) -> None:
    await server.trains()


@scenario("trains from the model in the invitation, without a download")
async def model_comes_along(server: ConformanceServer) -> None:
    task = server.next_round()
    task.inputs[0].CopyFrom(server.inline())
    server.send(task)
    await server.said(ACCEPTED, task)
    await server.counted(task)
    expect(not server.download_starts, "it downloaded a model that it had")


@scenario("sends the whole update in the encoding that the invitation asks for")
async def half_precision(server: ConformanceServer) -> None:
    await server.trains(encoding=tensors_pb2.ENCODING_FLOAT16)


@scenario("resumes a broken download from the first chunk that it lacks")
async def resumed_download(server: ConformanceServer) -> None:
    server.faults.break_download_after = [5]
    await server.trains()
    expect(server.download_starts[:2] == [0, 5], f"downloads began at {server.download_starts}, expected 0, then 5")


@scenario("does not train on a chunk that does not match its digest, but requests it again")
async def damaged_download(server: ConformanceServer) -> None:
    server.faults.flip_download = [3]
    await server.trains()
    expect(len(server.download_starts) > 1, "it took a damaged chunk")


@scenario("asks which part of a broken upload arrived, and sends only the rest")
async def resumed_upload(server: ConformanceServer) -> None:
    server.faults.break_upload_after = [10]
    await server.trains()
    expect(server.seen.status_calls, "GetUploadStatus was not called")
    expect(server.upload_streams[0] == 10, "the upload was to break after ten chunks, and was shorter")
    total = server.manifest.chunk_count
    expect(server.upload_streams[1] <= total - 10, f"{server.upload_streams[1]} chunks were sent again, of {total}")


@scenario("reconnects after the server restarts during an upload, lists the round in Hello.resuming, and finishes it")
async def restart_in_upload(server: ConformanceServer) -> None:
    server.faults.stall_uploads = 1
    task = server.next_round()
    server.send(task)
    await server.said(ACCEPTED, task)
    await server.until(server.seen.uploads_begun, "no upload began")
    await server.kill()
    server.faults.stall_uploads = 0
    answered = server.faults.hold_report = asyncio.Event()  # until then the round is in work
    await server.start()
    hello = await server.greeted()
    expect(task.key in hello.resuming, "Hello.resuming lacks the round that is in work")
    answered.set()
    await server.counted(task)
    server.faults.hold_report = None


@scenario("repeats a report whose answer was lost, with the same digest")
async def lost_answer(server: ConformanceServer) -> None:
    server.faults.lose_report_ack = 1
    await server.trains()
    digests = {call.request.digest for call in server.seen.reports}
    expect(len(server.seen.reports) == 2, f"{len(server.seen.reports)} reports came, expected 2")
    expect(len(digests) == 1, "the second report is another")


@scenario("treats a repeated invitation as one: it trains and reports once")
async def duplicate_invitation(server: ConformanceServer) -> None:
    task = server.next_round(settings={"seconds": 0.5})
    server.send(task)
    await server.said(ACCEPTED, task)
    server.send(task)
    await server.counted(task)
    await server.stays_silent(_QUIET_S, calls=1)


@scenario("declines another run's invitation while a task is in work, and finishes that task")
async def busy(server: ConformanceServer) -> None:
    task = server.next_round(settings={"seconds": 3.0})
    server.send(task)
    await server.said(ACCEPTED, task)
    other = server.participate(0, run="another")
    server.send(other)
    await server.said(DECLINED, other)
    await server.counted(task)


@scenario("ignores a Stop for an unknown round")
async def stop_for_a_stranger(server: ConformanceServer) -> None:
    server.stop(4_000_000, run="nowhere")
    await server.trains()


@scenario("gives up the task that a Stop names, without a report, and accepts the next invitation")
async def stop(server: ConformanceServer) -> None:
    task = server.next_round(settings={"seconds": server.wait_s})
    task.inputs[0].CopyFrom(server.inline())  # the next round has another model
    server.send(task)
    await server.said(ACCEPTED, task)
    server.stop(task.key.round)
    await server.trains()
    expect(len(server.seen.reports) == 1, "it reported work that was stopped")


@scenario("declines an invitation with an unknown encoding")
async def unknown_encoding(server: ConformanceServer) -> None:
    task = server.next_round(encoding=tensors_pb2.Encoding.ValueType(63))
    server.send(task)
    await server.said(DECLINED, task)
    await server.trains()


@scenario("ignores an unknown setting")
async def unknown_setting(server: ConformanceServer) -> None:
    task = server.next_round()
    task.settings["of-a-newer-trainer"].CopyFrom(setting_to_proto(value=True))
    server.send(task)
    await server.said(ACCEPTED, task)
    await server.counted(task)


@scenario("repeats a call after an error with REPEAT, no sooner than retry_after_s")
async def error_to_repeat(server: ConformanceServer) -> None:
    detail = ErrorDetail("server.busy", Fault.SERVER, "busy", "try again", retry_after_s=_QUIET_S)
    server.refusals = [(grpc.StatusCode.UNAVAILABLE, detail)]
    await server.trains()
    first, second = (call.at for call in server.seen.reports)
    expect(second - first >= _QUIET_S, f"it came again after {second - first:.2f} s, expected at least {_QUIET_S:g}")


@scenario("gives up a task after an error with NEXT_TASK, without another report, and accepts the next invitation")
async def error_that_is_fatal(server: ConformanceServer) -> None:
    detail = ErrorDetail("report.refused", Fault.CALLER, "too much weight", "wait", recovery=Recovery.NEXT_TASK)
    server.refusals = [(grpc.StatusCode.FAILED_PRECONDITION, detail)]
    task = server.next_round()
    server.send(task)
    await server.said(ACCEPTED, task)
    await server.until(server.seen.refused, "no report came")
    await server.stays_silent(_QUIET_S, calls=1)
    server.begin()
    await server.trains()


@scenario("waits for after_s after a ComeBack")
async def come_back_later(server: ConformanceServer) -> None:
    await _sent_away(server, CAUSE.CAUSE_STOPPING, _QUIET_S)


@scenario("reconnects by itself after a ComeBack with after_s = 0")
async def come_back_at_once(server: ConformanceServer) -> None:
    await _sent_away(server, CAUSE.CAUSE_STOPPING, 0.0)


@scenario("reconnects, but not before after_s, after another connection replaced it")
async def takeover(server: ConformanceServer) -> None:
    await _sent_away(server, CAUSE.CAUSE_TAKEN_OVER, _QUIET_S)


@scenario("renews a certificate that is about to expire, and checks in with the new one")
async def renewal(server: ConformanceServer) -> None:
    server.remaining_s = 20.0  # of the ten minutes that it is valid
    server.end_stream()
    await server.greeted()
    server.remaining_s = server.lifetime_s
    await server.greeted()
    expect(server.renewals == 1, f"Renew was called {server.renewals} times, expected once")
    await server.trains()
    expect(server.streams[-1] == "p1 v1", f"it checked in as {server.streams[-1]!r}, with the old certificate")


@scenario("does not check in again after an error with ENROL")
async def shut_out(server: ConformanceServer) -> None:
    server.faults.bar = ErrorDetail("participant.revoked", Fault.CALLER, "revoked", "enrol", recovery=Recovery.ENROL)
    server.end_stream()
    await server.until(server.seen.refused, "the client did not check in")
    await asyncio.sleep(3 * _QUIET_S)
    expect(server.barred == 1, f"it checked in {server.barred} times, expected once")


async def _sent_away(server: ConformanceServer, cause: part.ComeBack.Cause.ValueType, after_s: float) -> None:
    loop = asyncio.get_running_loop()
    order = part.ComeBack(cause=cause, after_s=after_s, reason="the script says so")
    server.push(part.CheckInResponse(come_back=order))
    server.end_stream()
    since = loop.time()
    await server.greeted()
    expect(loop.time() - since >= after_s, f"it came back after {loop.time() - since:.2f} s, not after {after_s:g}")
    await server.trains()
