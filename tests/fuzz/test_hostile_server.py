"""A participant and a server that sends anything: it continues or ends with its own error; it never hangs or grows."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.client import ClientError
from atoll.wire.messages import manifest_to_proto
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import participation_pb2 as part
from atoll.wire.v1 import transfer_pb2
from tests.client.harness import FAST, MODEL, AddOne, Federation, running
from tests.fuzz.hostile import CODES, Answer, Hostile
from tests.fuzz.material import EXAMPLES, FUZZ, changed, messages
from tests.patience import WAIT_S

GROWTH_BYTES = 64 << 20
LIMITS = dataclasses.replace(
    FAST, connect_s=1.0, call_s=0.5, stall_s=0.3, drain_s=1.0, retry_after_cap_s=0.1, give_up_after_s=3.0
)
PLAY_S = 0.4
"""Seconds that a test waits for the participant to come back to this server."""
HONEST = Federation(MODEL)
DETAIL = ErrorDetail("blob.member", Fault.CALLER, "what", "do", 0.01).trailer()[1]


def welcomes() -> st.SearchStrategy[bytes]:
    plain = part.CheckInResponse(welcome=HONEST.welcome()).SerializeToString()
    any_ = messages(part.Welcome).map(lambda found: part.CheckInResponse(welcome=found).SerializeToString())  # type: ignore[arg-type]  # a Welcome
    return st.one_of(st.just(plain), any_)


@st.composite
def invitations(draw: st.DrawFn) -> bytes:
    """An invitation that is valid except for its numbers and names."""
    odd = draw(messages(part.Participate))
    assert isinstance(odd, part.Participate)
    if draw(st.booleans()):
        return part.CheckInResponse(participate=odd).SerializeToString()
    del odd.inputs[:]
    odd.settings.clear()
    right = HONEST.participate(draw(st.integers(0, 3)), inputs=[])
    if draw(st.booleans()):
        del right.inputs[:]
        right.inputs.append(HONEST.inline())
    if draw(st.booleans()):
        right.MergeFrom(odd)
    return part.CheckInResponse(participate=right).SerializeToString()


@st.composite
def answers(draw: st.DrawFn, *valid: st.SearchStrategy[bytes], most: int = 1) -> Answer:
    """Up to this many messages, valid or changed, then an end of any kind."""
    one = st.one_of(*valid, st.one_of(*valid).flatmap(changed), st.binary(max_size=60))
    sent = draw(st.lists(one, max_size=most))
    code = draw(st.one_of(st.none(), st.sampled_from(CODES)))
    return Answer(sent, code, draw(st.one_of(st.just(DETAIL), changed(DETAIL), st.just(b""))))


@st.composite
def conversations(draw: st.DrawFn) -> Answer:
    """A welcome, most of the time, and what comes after it."""
    rest = st.one_of(invitations(), serialised(part.CheckInResponse))
    answer = draw(answers(rest, most=4))
    return (
        dataclasses.replace(answer, messages=[draw(welcomes()), *answer.messages])
        if draw(st.integers(0, 5))
        else answer
    )


def serialised(kind: Any) -> st.SearchStrategy[bytes]:
    return messages(kind).map(lambda message: message.SerializeToString())


def chunks() -> st.SearchStrategy[bytes]:
    parts = [HONEST.manifest.chunk_range(index) for index in range(HONEST.manifest.chunk_count)]
    whole = [
        transfer_pb2.DownloadResponse(index=index, payload=HONEST.blob[start:stop]).SerializeToString()
        for index, (start, stop) in enumerate(parts)
    ]
    return st.sampled_from(whole)


def manifests() -> st.SearchStrategy[bytes]:
    right = transfer_pb2.GetManifestResponse(manifest=manifest_to_proto(HONEST.manifest)).SerializeToString()
    return st.one_of(st.just(right), serialised(transfer_pb2.GetManifestResponse))


def scripts() -> st.SearchStrategy[dict[str, list[Answer]]]:
    few: Any = {"min_size": 1, "max_size": 3}
    unary = {
        "GetManifest": manifests(),
        "Upload": serialised(transfer_pb2.UploadResponse),
        "GetUploadStatus": serialised(transfer_pb2.GetUploadStatusResponse),
        "Report": serialised(transfer_pb2.ReportResponse),
    }
    return st.fixed_dictionaries(
        {"CheckIn": st.lists(conversations(), **few), "Download": st.lists(answers(chunks(), most=30), **few)}
        | {name: st.lists(answers(kind), **few) for name, kind in unary.items()}
    )


async def meet(script: dict[str, list[Answer]], state: Path) -> None:
    """Take part at such a server until it was come back to twice; then stop."""
    lost: list[dict[str, Any]] = []

    def lose(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if {"task", "future"} & set(context):  # not what gRPC's poller says of loops of other tests
            lost.append(context)

    asyncio.get_running_loop().set_exception_handler(lose)
    async with Hostile(script) as server:
        run = running(server, AddOne(), state, limits=LIMITS)
        third = asyncio.create_task(server.third.wait())
        await asyncio.wait({run.task, third}, timeout=PLAY_S, return_when=asyncio.FIRST_COMPLETED)
        third.cancel()
        run.session.stop("enough")
        done, _ = await asyncio.wait({run.task}, timeout=WAIT_S)
        assert done, f"it hangs: {script}"
        error = run.task.exception()
        assert error is None or isinstance(error, ClientError), repr(error)
    assert not lost, lost


class Unexpected(logging.Handler):
    """Keeps what the client logs as its own bug."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "unexpected" in record.getMessage():
            self.found.append(self.format(record))


@pytest.fixture
def unexpected() -> Iterator[Unexpected]:
    handler, logger = Unexpected(), logging.getLogger("atoll.client")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_whatever_a_server_sends(tmp_path: Path, unexpected: Unexpected) -> None:
    before = psutil.Process().memory_info().rss

    with asyncio.Runner() as runner:

        @settings(FUZZ, max_examples=max(EXAMPLES // 3, 5))
        @given(scripts())
        def every(script: dict[str, list[Answer]]) -> None:
            runner.run(meet(script, tmp_path))
            assert not unexpected.found, unexpected.found.pop()

        every()
    assert psutil.Process().memory_info().rss - before < GROWTH_BYTES
