"""Each server knows the host names of all, whichever are up."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from atoll.server.stores import Store, server_names
from atoll.server.stores.server_names import KEPT_S, remember
from atoll.wire.v1 import control_pb2, enrolment_pb2
from tests.patience import WAIT_S
from tests.server.gateway.site.test_link import Site
from tests.server.rpc.world import Caller, World, refused_code


def test_names_are_kept_for_a_time_and_the_newest_of_too_many(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store.open(tmp_path, url=postgresql_url)) as store:

        def note(*names: str, now: float) -> tuple[str, ...]:
            return store.writer.submit(remember, names, now=now).result(WAIT_S)

        assert note("b.example", "a.example", now=0.0) == ("a.example", "b.example")
        assert note("b.example", now=1.0) == ("a.example", "b.example")
        assert note("c.example", now=KEPT_S + 0.5) == ("b.example", "c.example")
        monkeypatch.setattr(server_names, "MOST_NAMES", 1)
        assert note("d.example", now=KEPT_S + 0.6) == ("d.example",)


async def make_token(world: World, host: str) -> control_pb2.CreateTokenResponse:
    """A token for an aggregator of this name; the server's own name leads nowhere here."""
    assert world.addresses.operator is not None
    kept = json.loads(world.addresses.operator.read_text())
    main = f"127.0.0.1:{world.addresses.main.rpartition(':')[2]}"
    operator = Caller(await world.channel(kept["key"].encode(), kept["certificate"].encode(), main))
    kind = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR
    request = control_pb2.CreateTokenRequest(organisation="north", kind=kind, lifetime_s=60.0, count=1, hosts=[host])
    made: control_pb2.CreateTokenResponse = await operator.control.CreateToken(request, timeout=WAIT_S)
    return made


async def test_after_a_takeover_the_former_servers_name_is_still_refused(tmp_path: Path, postgresql_url: str) -> None:
    """An aggregator with that name could pass for that server."""
    storage = {"database": postgresql_url}
    async with World(tmp_path / "data", storage=storage, advertise="first.example.org"):
        pass
    async with World(tmp_path / "data", storage=storage, advertise="second.example.org") as world:
        assert (await make_token(world, "agg.north.example")).tokens
        found = await refused_code(make_token(world, "first.example.org"))
        assert found == ("INVALID_ARGUMENT", "token.binding")


async def test_the_name_of_a_standby_that_is_away_is_refused_by_the_next_active_server(
    tmp_path: Path, postgresql_url: str
) -> None:
    storage = {"database": postgresql_url}
    async with World(tmp_path / "data", storage=storage) as world:
        site = Site(world)
        site.link._hello.names.append("third.example.org")
        site.stand_by()
        await site.connect()
        assert site.running is not None
        site.running.cancel()
        await asyncio.gather(site.running, return_exceptions=True)
    async with World(tmp_path / "data", storage=storage) as world:
        found = await refused_code(make_token(world, "third.example.org"))
        assert found == ("INVALID_ARGUMENT", "token.binding")
