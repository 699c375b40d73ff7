"""Events that inform open pages of changes, over HTTP."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message

from atoll.console.live import PACE_S, Live, polled
from atoll.operator import OperatorError, UnreachableError
from atoll.wire.v1 import control_pb2
from tests.console.browser import Browser, Running
from tests.console.conftest import Watched
from tests.server.cli.conftest import Fake, asked_for, summary

EVENTS = "/runs/rabc/events"


def change(released: int, status: int = control_pb2.RUN_STATUS_RUNNING) -> control_pb2.WatchRunResponse:
    return control_pb2.WatchRunResponse(summary=summary(status, released))


def test_a_run_that_changes_tells_its_page_until_it_ends(browser: Browser, control: Watched) -> None:
    with browser.events(EVENTS) as events:
        control.changes.put(change(1))
        assert next(events) == ("changed", "running, 1 of 2 rounds released")
        control.changes.put(change(2, control_pb2.RUN_STATUS_FINISHED))
        assert list(events) == [("changed", "finished, 2 of 2 rounds released"), ("ended", "over")]


def test_the_server_is_asked_for_no_more_changes_than_pages_are_told(
    browser: Browser, fake: Fake, control: Watched
) -> None:
    with browser.events(EVENTS) as events:
        control.changes.put(change(1))
        assert next(events)[0] == "changed"
    assert [one.pace_s for one in asked_for(fake, control_pb2.WatchRunRequest)] == [PACE_S]


def test_a_server_that_is_away_has_no_events(browser: Browser, fake: Fake) -> None:
    fake.stop()
    assert browser.get(EVENTS).status == 503


def test_the_list_of_runs_tells_of_its_state(browser: Browser) -> None:
    with browser.events("/events/runs") as events:
        assert next(events) == ("changed", "1 run not ended")


def test_the_list_of_participants_tells_of_its_state(browser: Browser) -> None:
    with browser.events("/events/participants") as events:
        assert next(events) == ("changed", "0 participants connected")


def test_the_log_tells_of_new_lines(browser: Browser, control: Watched) -> None:
    with browser.events("/events/log") as events:
        assert next(events)[0] == "changed"
        control.log_lines = [control_pb2.LogLine(number=7, level=control_pb2.LOG_LEVEL_ERROR, message="disk is full")]
        assert next(events) == ("changed", "the newest lines")


def test_a_console_that_stops_ends_the_streams(console: Running, browser: Browser, control: Watched) -> None:
    with browser.events(EVENTS) as events:
        control.changes.put(change(1))
        assert next(events)[0] == "changed"
        console.console.stop()
        assert list(events) == [("ended", "stopped")]


async def never() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


async def received(live: Live, changes: AsyncIterator[str], alive: Callable[[], bool] = lambda: True) -> list[str]:
    """What a browser gets of the changes, until the stream ends."""
    answer = live.answer(changes, alive)
    assert isinstance(answer, StreamingResponse)
    return [bytes(part).decode() async for part in answer.body_iterator if not isinstance(part, str)]


async def test_the_end_of_a_session_ends_its_streams() -> None:
    """Also while nothing changes."""
    asked = itertools.count()
    got = await received(Live(beat_s=0.0), never(), lambda: next(asked) < 3)
    assert got == [": live\n\n", *[": beat\n\n"] * 3]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (OperatorError("the run is\ngone"), 'event: ended\ndata: "failed: the run is\\ngone"\n\n'),
        (UnreachableError("it did not come back"), 'event: away\ndata: "it did not come back"\n\n'),
    ],
)
async def test_a_failure_is_shown_on_the_page(error: OperatorError, event: str) -> None:
    async def failing() -> AsyncIterator[str]:
        yield "running"
        raise error

    got = "".join(await received(Live(pace_s=0.0), failing()))
    assert got.startswith(': live\n\nevent: changed\ndata: "running"\n\n')
    assert got.endswith(event)


async def test_of_many_changes_the_page_gets_the_newest() -> None:
    async def many() -> AsyncIterator[str]:
        for number in range(100):
            yield str(number)

    got = await received(Live(pace_s=0.0), many())
    assert got == [": live\n\n", 'event: changed\ndata: "99"\n\n', 'event: ended\ndata: "over"\n\n']


async def test_a_list_is_yielded_once_for_each_change() -> None:
    answers = iter([((1,), "one"), ((1,), "one"), ((2,), "two"), ((1,), "one")])
    got = [text async for text in _three(polled(lambda: next(answers), 0.0))]
    assert got == ["one", "two", "one"]


async def test_a_list_is_followed_on_once_the_server_is_back() -> None:
    errors = iter([None, UnreachableError("refused"), UnreachableError("timed out"), None])

    def ask() -> tuple[object, str]:
        if error := next(errors):
            raise error
        return (1,), "one"

    assert [text async for text in _three(polled(ask, 0.0))] == ["one", "refused", "one"]


async def test_an_error_that_was_not_expected_is_told_to_the_page_and_raised() -> None:
    async def failing() -> AsyncIterator[str]:
        yield "running"
        raise LookupError("a secret")

    answer = Live(pace_s=0.0).answer(failing(), lambda: True)
    assert isinstance(answer, StreamingResponse)
    got = aiter(answer.body_iterator)
    assert await anext(got) == b": live\n\n"
    assert await anext(got) == b'event: changed\ndata: "running"\n\n'
    assert await anext(got) == b'event: ended\ndata: "failed: LookupError"\n\n'
    with pytest.raises(LookupError, match="a secret"):
        await anext(got)


async def _three(changes: AsyncIterator[str]) -> AsyncIterator[str]:
    for _ in range(3):
        yield await anext(changes)


async def test_streams_are_bounded() -> None:
    live = Live(max_streams=1)
    answer = live.answer(never(), lambda: True)
    assert isinstance(answer, StreamingResponse)
    stream = aiter(answer.body_iterator)
    assert await anext(stream) == b": live\n\n"
    refused = live.answer(never(), lambda: True)
    assert refused.status_code == 503
    assert b"at most 1 pages can be followed" in bytes(refused.body)
    live.stop()
    assert [part async for part in stream] == [b'event: ended\ndata: "stopped"\n\n']


async def test_pages_that_ask_at_the_same_time_are_bounded_too() -> None:
    live = Live(max_streams=2)
    assert [live.answer(never(), lambda: True).status_code for _ in range(3)] == [200, 200, 503]


@pytest.mark.parametrize("sends", [0, 1])
async def test_a_browser_that_leaves_makes_room(sends: int) -> None:
    """Before the first event too: then the events are never asked for."""
    live, sent = Live(max_streams=1), 0

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        nonlocal sent
        if sent == sends:
            raise OSError(f"the browser has left before {message['type']}")
        sent += 1

    answer = live.answer(never(), lambda: True)
    with pytest.raises(ClientDisconnect):
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    assert live.answer(never(), lambda: True).status_code == 200
