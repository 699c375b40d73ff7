import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.server.config.limits import GIB, MIB, Limits
from atoll.server.errors import LimitExceededError
from atoll.server.rpc import admission as module
from atoll.server.rpc.admission import Admission, Replies
from atoll.wire.v1 import participation_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import World, refusal, refused_code


class Call:
    """A call that ends when the test wants."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        for callback in self.callbacks:
            callback(None)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUT_OFF_S", 0.0)


def code_of(caught: pytest.ExceptionInfo[LimitExceededError]) -> str:
    return caught.value.detail.code


async def test_calls_open_at_the_same_time() -> None:
    admission = Admission(Limits(calls_per_participant=2))
    calls = [Call(), Call()]
    for call in calls:
        await admission.call("alice", call)
    await admission.call("bob", Call())
    with pytest.raises(LimitExceededError) as caught:
        await admission.call("alice", Call())
    assert code_of(caught) == "call.places"
    calls[0].end()
    await admission.call("alice", Call())


async def test_calls_in_a_minute(clock: Time) -> None:
    admission = Admission(Limits(calls_per_minute=3), clock)
    for _ in range(3):
        await admission.call("alice", Call())
    with pytest.raises(LimitExceededError) as caught:
        await admission.call("alice", Call())
    assert code_of(caught) == "call.rate"
    assert caught.value.detail.retry_after_s
    clock.now = caught.value.detail.retry_after_s
    await admission.call("alice", Call())
    with pytest.raises(LimitExceededError):
        admission.reply("alice")


async def test_check_ins_in_a_minute(clock: Time) -> None:
    admission = Admission(Limits(check_ins_per_minute=2), clock)
    await admission.check_in("alice")
    await admission.check_in("alice")
    with pytest.raises(LimitExceededError, match="2 check-ins") as caught:
        await admission.check_in("alice")
    assert code_of(caught) == "checkin.rate"
    await admission.check_in("bob")
    clock.now = 31.0
    await admission.check_in("alice")


async def test_too_frequent_check_ins_are_answered_late(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUT_OFF_S", 3600.0)
    monkeypatch.setattr(module, "MAX_PUT_OFF", 1)
    admission = Admission(Limits(check_ins_per_minute=1), clock)
    await admission.check_in("alice")
    waiting = asyncio.ensure_future(admission.check_in("alice"))
    await asyncio.sleep(0)
    with pytest.raises(LimitExceededError):  # one may wait, the next is refused at once
        await asyncio.wait_for(admission.check_in("alice"), WAIT_S)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = asyncio.ensure_future(admission.check_in("alice"))  # who hung up has freed its place
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


def test_answers_to_one_invitation() -> None:
    replies = Replies(Limits(replies_per_task=2))
    for task in ("a", "b", "a", "b"):
        replies.count(task)
    with pytest.raises(LimitExceededError) as caught:
        replies.count("a")
    assert code_of(caught) == "reply.count"


def test_transfers_at_the_same_time() -> None:
    admission = Admission(Limits(transfers_per_participant=1))
    too_many = pytest.raises(LimitExceededError, match="alice has 1 transfers open")
    with admission.transfer("bob"), admission.transfer("alice"), too_many, admission.transfer("alice"):
        pass
    with admission.transfer("alice"):
        pass


def test_bytes_up_in_a_second(clock: Time) -> None:
    admission = Admission(Limits(upload_mib_per_s=8), clock)
    with admission.upload("alice") as one, admission.upload("alice") as other:
        for _ in range(8):
            one.count(MIB)
            other.count(MIB)
        with pytest.raises(LimitExceededError) as caught:
            one.count(MIB)
        assert code_of(caught) == "upload.rate"
        clock.now = caught.value.detail.retry_after_s or 0.0
        one.count(MIB)


@pytest.mark.parametrize("way", ["upload", "download"])
def test_bytes_in_an_hour(clock: Time, way: str) -> None:
    admission = Admission(Limits(upload_gib_per_hour=1, download_gib_per_hour=1), clock)
    with getattr(admission, way)("alice") as meter:
        meter.count(GIB)
        with pytest.raises(LimitExceededError, match="1 GiB within an hour") as caught:
            meter.count(MIB)
    assert code_of(caught) == f"{way}.quota"
    with getattr(admission, way)("bob") as meter:
        meter.count(MIB)
    clock.now = 3600.0
    with getattr(admission, way)("alice") as meter:
        meter.count(MIB)


def test_a_stream_pays_for_what_it_brought(clock: Time) -> None:
    """Unused allowance is returned: ten thousand small updates are not charged as ten thousand blocks."""
    admission = Admission(Limits(upload_gib_per_hour=1), clock)
    for _ in range(10_000):
        with admission.upload("alice") as meter:
            meter.count(1000)


def test_callers_are_forgotten_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    admission = Admission(Limits())
    for number in range(10):
        admission.reply(str(number))
    assert len(admission._accounts) == 3


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[World]:
    limits = Limits(check_ins_per_minute=2, replies_per_task=2, transfers_per_participant=2, request_bytes=64 << 10)
    async with World(tmp_path / "data", limits=limits) as world:
        yield world


async def test_limits_reach_callers(narrow: World) -> None:
    alice = await narrow.participant()
    for _ in range(2):
        async with alice.check_in():
            pass
    found = await refusal(alice.participation.CheckIn().read())
    assert found.detail is not None
    assert (found.status.name, found.detail.code) == ("RESOURCE_EXHAUSTED", "checkin.rate")
    assert found.detail.retry_after_s

    async def endless() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    streams = [asyncio.ensure_future(alice.upload(endless())) for _ in range(3)]
    refused, _ = await asyncio.wait(streams, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert [await refused_code(one) for one in refused] == [("RESOURCE_EXHAUSTED", "stream.places")]
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


async def test_answers_reach_their_end(narrow: World) -> None:
    bob = await narrow.participant()
    async with bob.check_in() as stream:
        for _ in range(3):
            await stream.reply(participation_pb2.RoundKey(run="r", round=1), 1)
        assert await refused_code(stream.call.read()) == ("RESOURCE_EXHAUSTED", "reply.count")


async def test_requests_and_metadata_beyond_their_size(narrow: World) -> None:
    alice = await narrow.participant()
    huge = bytes(65 << 10)
    assert await refused_code(alice.raw("/atoll.wire.v1.TransferService/Report", huge)) == (
        "RESOURCE_EXHAUSTED",
        "request.bytes",
    )
    call: Any = alice.channel.unary_unary("/atoll.wire.v1.TransferService/Report")
    many = [(f"x-{number}", "1") for number in range(100)]
    assert await refused_code(call(b"", metadata=many, timeout=WAIT_S)) == ("RESOURCE_EXHAUSTED", "request.metadata")
