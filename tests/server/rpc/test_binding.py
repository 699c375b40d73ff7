"""Bindings of join tokens to aggregators and host names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.identity import OperatorRole, ParticipantKind
from atoll.server.process.standby_identity import StandbyIdentity
from atoll.server.rpc.binding import Binding, bound_through, hosts_of
from atoll.wire.join_token import JoinToken
from atoll.wire.v1 import control_pb2, enrolment_pb2, gateway_pb2, gateway_pb2_grpc
from tests.patience import WAIT_S
from tests.server.rpc.test_projects import new_project, with_role
from tests.server.rpc.world import Caller, Key, World, refusal, refused_code

TAKEN = ("INVALID_ARGUMENT", "token.binding")
SERVER = ("fl.example.org", "localhost", "127.0.0.1", "2001:db8::1")


def hosts(*names: str, kind: ParticipantKind = ParticipantKind.AGGREGATOR, through: str = "") -> str:
    return hosts_of(names, kind, through=through, server_names=SERVER)


def test_an_aggregator_gets_the_names_that_its_token_has() -> None:
    assert hosts("agg.example.org", "10.1.2.3", "agg.example.org") == "agg.example.org 10.1.2.3"
    assert hosts("127.0.0.1") == "127.0.0.1"
    assert hosts("Localhost") == "Localhost"
    assert hosts(kind=ParticipantKind.EDGE) == ""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "0 host names for an aggregator: 1 to 16"),
        (("fl.example.org",), "fl.example.org is a name of the server's own"),
        (("agg.example.org", "FL.Example.org"), "FL.Example.org is a name of the server's own"),
        (("2001:0DB8:0::1",), "2001:0DB8:0::1 is a name of the server's own"),
        (("agg.example.org:7410",), "neither a host name nor an IP address"),
        (("a b",), "neither a host name nor an IP address"),
        (("2001:db8::1%eth0",), "neither a host name nor an IP address"),
        (("2001:db8::7%zone fl.example.org",), "neither a host name nor an IP address"),
    ],
)
def test_names_that_an_aggregator_may_not_have(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        hosts(*names)


def test_names_and_bindings_are_for_their_kinds() -> None:
    with pytest.raises(InvalidRequestError, match="host names for a token of kind silo"):
        hosts("agg.example.org", kind=ParticipantKind.SILO)
    with pytest.raises(InvalidRequestError, match="an aggregator through another"):
        hosts("agg.example.org", through="north")


def test_a_binding_leads_to_the_aggregators_enrolment_port() -> None:
    assert bound_through("north", ["pa"], {"pa": "agg:7411"}) == Binding("agg:7411", "", "pa")
    with pytest.raises(InvalidRequestError, match="0 aggregators are named 'north'") as none:
        bound_through("north", [], {})
    assert "start it first" in none.value.detail.remedy
    with pytest.raises(InvalidRequestError, match="2 aggregators are named 'north': pa, pb") as several:
        bound_through("north", ["pa", "pb"], {"pa": "agg:7411"})
    assert "--through pa" in several.value.detail.remedy
    with pytest.raises(InvalidRequestError, match="aggregator pa is not connected"):
        bound_through("north", ["pa"], {})


class TestNamesOfOthers:
    """At a real server: an aggregator could pass for another one, or for a server that stands by."""

    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[World]:
        async with World(tmp_path / "data") as world:
            yield world

    async def test_those_of_another_organisations_aggregator_are_taken(self, world: World) -> None:
        answer = await world.enrol_with(await self._token(world, "north", "agg.example.org"), Key(), aggregator=True)
        for name in ("AGG.example.org", "agg.example.org"):
            assert await refused_code(self._token(world, "south", name)) == TAKEN
        assert await self._token(world, "south", "agg2.example.org")
        revoke = control_pb2.RevokeParticipantRequest(participant=answer.participant)
        await world.operator.control.RevokeParticipant(revoke, timeout=WAIT_S)
        assert await self._token(world, "south", "agg.example.org")

    async def test_a_site_may_give_its_own_again(self, world: World) -> None:
        for _ in range(2):
            await world.enrol_with(await self._token(world, "north", "agg.example.org"), Key(), aggregator=True)

    async def test_those_in_an_unspent_token_are_taken_until_it_is_void(self, world: World) -> None:
        token = await self._token(world, "north", "2001:db8::1")
        assert await refused_code(self._token(world, "south", "2001:0DB8:0::1")) == TAKEN
        void = control_pb2.VoidTokensRequest(token_ids=[token.token_id])
        await world.operator.control.VoidTokens(void, timeout=WAIT_S)
        assert await self._token(world, "south", "2001:db8::1")

    async def test_those_of_another_project_are_taken_and_it_stays_unnamed(self, world: World) -> None:
        await new_project(world, "cardio")
        boss = await with_role(world, "boss", OperatorRole.ADMINISTRATOR, "cardio")
        await self._token(world, "north", "agg.example.org")
        found = await refusal(self._token(world, "north", "agg.example.org", by=boss))
        assert found.detail is not None
        assert found.detail.code == TAKEN[1]
        assert "default" not in found.detail.message

    async def test_loopback_names_may_be_shared(self, world: World) -> None:
        for organisation in ("north", "south"):
            assert await self._token(world, organisation, "127.0.0.1", "localhost")

    async def test_names_of_a_standby_server_are_taken(self, world: World) -> None:
        credentials = StandbyIdentity.open(world.config).credentials()
        async with grpc.aio.secure_channel(world.addresses.main, credentials) as channel:
            await self._attend(channel, "second.example.org", "localhost")
            assert await refused_code(self._token(world, "north", "Second.example.org")) == TAKEN
        assert await refused_code(self._token(world, "north", "second.example.org")) == TAKEN, "it may come back"

    async def test_an_aggregator_does_not_take_names_by_saying_that_they_are_its_own(self, world: World) -> None:
        key = Key()
        answer = await world.enrol_with(await self._token(world, "north", "127.0.0.1"), key, aggregator=True)
        await self._attend(await world.channel(key.pem, answer.certificate_pem), "other.example.org")
        assert await self._token(world, "south", "other.example.org")

    async def _attend(self, channel: grpc.aio.Channel, *names: str) -> None:
        """Connect as a gateway that says these names, and wait for the welcome."""
        stub: Any = gateway_pb2_grpc.GatewayServiceStub(channel)
        attending = stub.Attend()
        hello = gateway_pb2.GatewayHello(protocol=1, names=names)
        await attending.write(gateway_pb2.AttendRequest(hello=hello))
        await asyncio.wait_for(attending.read(), WAIT_S)

    async def _token(self, world: World, organisation: str, *names: str, by: Caller | None = None) -> JoinToken:
        kind = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR
        return await world.token(organisation, kind=kind, by=by, hosts=list(names))
