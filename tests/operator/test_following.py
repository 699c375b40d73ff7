"""How long commands wait for a server that is away, by the test's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from atoll.operator import TimedOutError, Timeouts, UnreachableError
from atoll.operator.calls import Calls
from atoll.operator.connecting import Target
from atoll.operator.following import Clock, follow, follow_async
from atoll.server.control import Progress
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import Fake, serve, summary

RECONNECT_S = 20.0
PAUSES_S = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 3.7]
"""Twice as long each time, up to 5 s, and 20 s together."""


Answers = list[control_pb2.WatchRunResponse | None]


class Time:
    """A clock that advances only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []
        self.clock = Clock(lambda: self.now_s, self.sleep, self.sleep_async)

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(round(seconds, 6))
        self.now_s += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


def change(ended: bool = False) -> control_pb2.WatchRunResponse:
    status = control_pb2.RUN_STATUS_FINISHED if ended else control_pb2.RUN_STATUS_RUNNING
    return control_pb2.WatchRunResponse(summary=summary(status))


def away(times: int) -> list[Answers]:
    """Answers of a server that is UNAVAILABLE this many times."""
    return [[None] for _ in range(times)]


@pytest.fixture
def fake() -> Iterator[Fake]:
    yield from serve(lambda server: server.add_insecure_port("127.0.0.1:0"))


@pytest.fixture
def calls(fake: Fake) -> Iterator[Calls]:
    opened = Calls(Target(fake.address, None), Timeouts(reconnect_s=RECONNECT_S))
    yield opened
    opened.close()


Follow = Callable[[Calls, float, list[str], Clock], list[Progress]]


def blocking(calls: Calls, timeout_s: float, lost: list[str], clock: Clock) -> list[Progress]:
    return list(follow(calls, "rabc", timeout_s, lost.append, clock))


def in_a_loop(calls: Calls, timeout_s: float, lost: list[str], clock: Clock) -> list[Progress]:
    async def collected() -> list[Progress]:
        return [progress async for progress in follow_async(calls, "rabc", timeout_s, lost.append, clock)]

    return asyncio.run(collected())


both = pytest.mark.parametrize("follow_it", [blocking, in_a_loop])


@both
def test_a_server_that_keeps_answering_unavailable_is_given_up_after_the_patience(
    fake: Fake, calls: Calls, follow_it: Follow
) -> None:
    fake.control.watches = [[change(), None], *away(50)]
    time, lost = Time(), list[str]()
    with pytest.raises(UnreachableError, match="did not come back within 20 s"):
        follow_it(calls, 3600.0, lost, time.clock)
    assert time.pauses_s == PAUSES_S
    assert lost == [f"lost the server at {calls.address}; waiting up to 20 s for it to come back"]


@both
def test_each_interruption_has_the_whole_patience(fake: Fake, calls: Calls, follow_it: Follow) -> None:
    times = len(PAUSES_S) - 1
    fake.control.watches = [[change(), None], *away(times), [change(), None], *away(times), [change(ended=True)]]
    time, lost = Time(), list[str]()
    assert [progress.run.ended for progress in follow_it(calls, 3600.0, lost, time.clock)] == [False, False, True]
    assert time.pauses_s == PAUSES_S * 2
    assert len(lost) == 2


@both
def test_the_run_is_given_up_in_its_time_even_if_the_server_is_away(
    fake: Fake, calls: Calls, follow_it: Follow
) -> None:
    fake.control.watches = [[change(), None], *away(50)]
    time = Time()
    with pytest.raises(TimedOutError, match="had not ended after 2 s"):
        follow_it(calls, 2.0, [], time.clock)
    assert sum(time.pauses_s) == pytest.approx(2.0)


@both
def test_streams_that_end_without_a_change_count_as_away(fake: Fake, calls: Calls, follow_it: Follow) -> None:
    fake.control.watches = [[] for _ in range(50)]
    time = Time()
    with pytest.raises(UnreachableError, match="did not come back"):
        follow_it(calls, 3600.0, [], time.clock)
    assert time.pauses_s == PAUSES_S


@both
def test_nothing_is_read_after_the_end(fake: Fake, calls: Calls, follow_it: Follow) -> None:
    fake.control.watches = [[change(ended=True), None]]
    assert len(follow_it(calls, 3600.0, [], Time().clock)) == 1
