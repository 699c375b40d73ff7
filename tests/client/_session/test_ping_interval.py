"""A participant pings a little more often than its server does, at the interval that the server states."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.client._connection import endpoint as endpoints
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.renewal import Renewal
from atoll.client._state.ping_interval import keep_ping_s, kept_ping_s
from atoll.client.events import CheckedIn, Connected, Disconnected, Reported
from atoll.wire.pacing import LONGEST_PING_S, PING_S, participant_ping_ms, ping_interval_s
from atoll.wire.v1 import participation_pb2 as part
from tests.client.harness import FAST, MODEL, AddOne, Federation, Run, running
from tests.ping_proxy import PingProxy

PINGS = 3
"""More than gRPC sends by itself on a line at rest: one to measure it, when it receives the welcome."""
HOUR_MS = 3_600_000
SOON_MS = 50

Begin = Callable[..., Run]


@pytest.fixture
async def server() -> AsyncIterator[Federation]:
    """A server that allows pings at any rate."""
    async with Federation(MODEL, options=[("grpc.http2.max_ping_strikes", 0)]) as federation:
        yield federation


@pytest.fixture
async def network(server: Federation) -> AsyncIterator[PingProxy]:
    async with PingProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def begin(network: PingProxy, tmp_path: Path) -> AsyncIterator[Begin]:
    """Starts a session through the network; all of them have one state directory."""
    runs: list[Run] = []

    def start(**options: Any) -> Run:
        runs.append(running(network, AddOne(), tmp_path / "state", **options))
        return runs[-1]

    yield start
    for run in runs:
        await run.stop()


@pytest.fixture
def soon_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Pings go every 50 ms at one stated interval, and every hour at any other."""

    def speed_up(stated_s: float) -> None:
        monkeypatch.setattr(endpoints, "participant_ping_ms", lambda s: SOON_MS if s == stated_s else HOUR_MS)

    return speed_up


async def test_the_channel_is_reopened_with_the_interval_that_the_server_states(
    server: Federation, network: PingProxy, begin: Begin, soon_at: Callable[[float], None]
) -> None:
    """Neither a failure nor a welcome: it is connected once, and takes part."""
    server.ping_s = 40.0
    soon_at(40.0)
    run = begin()
    await run.saw(Connected)
    await network.until(lambda: network.connections[-1].client.pings >= PINGS)
    assert len(network.connections) == 2
    assert server.hellos.qsize() == 2
    server.invite()
    await run.saw(Reported)
    assert (len(run.of(Connected)), run.of(Disconnected)) == (1, [])


async def test_a_later_start_begins_with_that_interval(
    server: Federation, network: PingProxy, begin: Begin, soon_at: Callable[[float], None]
) -> None:
    server.ping_s = 40.0
    first = begin()
    await first.saw(Connected)
    await first.stop()
    assert len(network.connections) == 2
    soon_at(40.0)
    second = begin()
    await second.saw(Connected)
    await network.until(lambda: network.connections[-1].client.pings >= PINGS)
    assert len(network.connections) == 3


async def test_transfers_have_it_too(
    server: Federation, network: PingProxy, begin: Begin, soon_at: Callable[[float], None]
) -> None:
    """The connection of a report stays open, and at rest, for the next task."""
    server.ping_s = 40.0
    soon_at(40.0)
    run = begin()
    await network.until(lambda: len(network.connections) == 2 and network.connections[1].client.pings >= PINGS)
    server.invite()
    await run.saw(Reported)
    enough = 2 * PINGS  # a download is measured more often
    await network.until(lambda: [one.client.pings >= enough for one in network.connections] == [False, True, True])


async def test_a_server_that_states_none_is_pinged_as_before(
    network: PingProxy, begin: Begin, soon_at: Callable[[float], None], tmp_path: Path
) -> None:
    """As servers of the release before do; also if another one had stated an interval before."""
    soon_at(PING_S)
    run = begin()
    await run.saw(Connected)
    await network.until(lambda: network.connections[0].client.pings >= PINGS)
    assert len(network.connections) == 1
    await run.stop()
    keep_ping_s(tmp_path / "state", 40.0)
    await begin().saw(Connected)
    await network.until(lambda: len(network.connections) == 3 and network.connections[2].client.pings >= PINGS)
    assert participant_ping_ms(PING_S) == 9000


async def test_servers_that_disagree_do_not_keep_it_from_its_work(
    server: Federation,
    network: PingProxy,
    begin: Begin,
    soon_at: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals = iter((20.0, 30.0))
    plain = server.welcome

    def welcome() -> Any:
        message = plain()
        message.ping_s = next(intervals)
        return message

    monkeypatch.setattr(server, "welcome", welcome)
    soon_at(20.0)
    run = begin()
    await run.saw(Connected)
    await network.until(lambda: network.connections[-1].client.pings >= PINGS)
    server.invite()
    await run.saw(Reported)
    assert server.hellos.qsize() == 2


async def test_single_check_ins_take_it_over_with_their_next_connection(
    server: Federation, network: PingProxy, begin: Begin, soon_at: Callable[[float], None], tmp_path: Path
) -> None:
    server.ping_s, server.return_after_s = 40.0, 0.01
    soon_at(40.0)
    server.push(part.CheckInResponse(return_spread=part.ReturnSpread()))  # the first call is answered, the next held
    run = begin(check_in="unary")
    await run.saw(CheckedIn)
    assert (run.of(Disconnected), len(run.of(Connected))) == ([], 1)
    assert kept_ping_s(tmp_path / "state") == 40.0
    await network.until(lambda: network.connections[-1].client.pings >= PINGS)
    assert network.connections[0].client.pings < PINGS


@pytest.mark.parametrize(
    ("stated", "taken"),
    [(0.0, PING_S), (-1.0, PING_S), (math.nan, PING_S), (1e-9, PING_S), (math.inf, LONGEST_PING_S), (40.0, 40.0)],
)
def test_no_server_can_ask_for_many_pings_or_none(stated: float, taken: float) -> None:
    assert ping_interval_s(stated) == taken


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"ping_s": "often"}', '{"ping_s": null}', f'{{"ping_s": {10**400}}}', "\udcff"]
)
def test_a_damaged_file_is_not_used(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "pings.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert kept_ping_s(tmp_path) == PING_S
    assert f"{tmp_path / 'pings.json'} is not used" in caplog.text
    keep_ping_s(tmp_path, 40.0)
    assert kept_ping_s(tmp_path) == 40.0


def test_an_interval_that_cannot_be_kept_ends_no_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        keep_ping_s(tmp_path / "missing", 40.0)
    assert "not kept for the next start" in caplog.text


async def test_a_renewed_certificate_and_another_port_keep_the_interval(tmp_path: Path) -> None:
    (tmp_path / "pings.json").write_text(json.dumps({"ping_s": 40.0}))
    renewal = Renewal(Endpoint("127.0.0.1:1", None, "p1"), tmp_path, FAST, lambda _: None)
    assert renewal.endpoint.ping_s == 40.0
    assert renewal.endpoint.at("127.0.0.1:2").ping_s == 40.0
    assert not await renewal.follow_pings(40.0)
    assert await renewal.follow_pings(0.0)
    assert renewal.endpoint.ping_s == kept_ping_s(tmp_path) == PING_S
