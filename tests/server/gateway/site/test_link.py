"""The link to a real server: re-established when it breaks, ended when the gateway is revoked.

A refusal of a gateway is not a refusal of its participants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from atoll.server.errors import ForbiddenError, InvalidRequestError, UnauthenticatedError, UnavailableError
from atoll.server.gateway.host.bound_coordinator import BoundCoordinator
from atoll.server.gateway.site import link
from atoll.server.gateway.site.coordinator import Certificates, SiteCoordinator
from atoll.server.gateway.site.link import Line, Link
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.gateway.site.relay import Relay
from atoll.server.gateway.site.worker import OwnCalls, Worker
from atoll.server.identity import OperatorRole, Role
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.process.standby_identity import StandbyIdentity
from atoll.server.rpc.coordinator_service import RemoteCoordinator
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.server.runs.session import Introduction
from atoll.server.runs.sessions import Sessions
from atoll.wire.v1 import control_pb2, enrolment_pb2, gateway_pb2
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceStub
from tests.patience import WAIT_S, window_s
from tests.server.gateway.host.gateways import short_lived
from tests.server.ingest.uploads import ALICE, BOB, chunks_of, committed, ref, values_of
from tests.server.rpc.test_projects import new_project, with_role
from tests.server.rpc.world import Key, World, job

pytestmark = pytest.mark.slow


class Watched(Relay):
    """Reports when the link comes up and goes down."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(Sessions(), certificates.of, time.time)
        self.up, self.down = asyncio.Event(), asyncio.Event()

    def attach(self) -> asyncio.Queue[gateway_pb2.AttendRequest | None]:
        self.up.set()
        return super().attach()

    def detach(self) -> None:
        self.down.set()
        super().detach()


class Idle:
    """Does nothing of what the server orders, and says that it is done."""

    async def begin(self) -> None:
        """See ``Performing``."""

    async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        return gateway_pb2.OrderDone(number=order.number)


class Site:
    """A gateway's link, and its services' calls to the server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.name = ""
        self._credentials = grpc.ssl_channel_credentials(world.ca)
        certificates = Certificates()
        self.relay = Watched(certificates)
        hello = gateway_pb2.GatewayHello(protocol=1, enrolment_address=world.addresses.enrolment)
        self.link = Link(world.addresses.main, lambda: self._credentials, hello, self.relay)
        self.link.worker = Idle()
        self.coordinator = SiteCoordinator(self.link, certificates, self.relay, None)
        self.running: asyncio.Task[None] | None = None

    async def enrol(self) -> None:
        """Get the certificate of a new aggregator, with which a link can also be made."""
        kind, key = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR, Key()
        token = await self.world.token(kind=kind, hosts=["127.0.0.1"])
        answer = await self.world.enrol_with(token, key, aggregator=True)
        self.name = answer.participant
        self._credentials = grpc.ssl_channel_credentials(self.world.ca, key.pem, answer.certificate_pem)

    def stand_by(self) -> None:
        """Be a server of the federation that stands by, instead of an aggregator."""
        self._credentials = StandbyIdentity.open(self.world.config).credentials()

    async def connect(self) -> None:
        self.running = asyncio.create_task(self.link.run())
        await self.connected()

    async def connected(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.relay.up.wait()
        self.relay.up.clear()

    async def disconnected(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.relay.down.wait()
        self.relay.down.clear()

    async def participant(self) -> bytes:
        """The certificate of a participant that is bound to it."""
        token, key = await self.world.token(through=self.name), Key()
        return (await self.world.enrol_with(token, key)).certificate_pem


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", silence_s=600.0) as opened:
        yield opened


@pytest.fixture
async def site(world: World) -> AsyncIterator[Site]:
    made = Site(world)
    yield made
    if made.running is not None:
        made.running.cancel()
        await asyncio.gather(made.running, return_exceptions=True)


async def test_a_revoked_participant_is_refused_by_a_gateway_that_stands(world: World, site: Site) -> None:
    await site.enrol()
    await site.connect()
    pem = await site.participant()
    caller = await site.coordinator.identify(pem)
    assert caller.role is Role.PARTICIPANT
    revoke = control_pb2.RevokeParticipantRequest(participant=caller.name, reason="left")
    await world.operator.control.RevokeParticipant(revoke, timeout=WAIT_S)
    site.link.forget()
    with pytest.raises(UnauthenticatedError, match="revoked: left"):
        await site.coordinator.identify(pem)


async def test_a_participants_project_is_known_at_a_standby(world: World, site: Site) -> None:
    """A standby admits check-ins by project, as the active server does."""
    await new_project(world, "cardio")
    boss = await with_role(world, "boss", OperatorRole.ADMINISTRATOR, "cardio")
    pems = [(await world.enrol_with(await world.token(by=by), Key())).certificate_pem for by in (boss, None)]
    site.stand_by()
    await site.connect()
    found: list[tuple[str, str]] = []
    for pem in pems:
        name = (await site.coordinator.identify(pem)).name
        membership = await site.relay.introduced(name, Introduction(1, frozenset(), can_evaluate=False))
        found.append((await site.relay.project_of(name), membership.project))
    assert found == [("cardio", "cardio"), ("default", "default")]


async def test_a_gateway_whose_certificate_expires_connects_again_and_refuses_no_participant_for_it(
    world: World, site: Site
) -> None:
    with short_lived(world, window_s()):
        await site.enrol()
    await site.connect()
    pem = await site.participant()
    async with site.link.open_channel() as kept:
        late = Line(kept, RemoteCoordinator(kept), GatewayServiceStub(kept))
        assert await late.coordinator.identify(pem)
        late.coordinator.forget()
        await site.disconnected()  # the server ended the streams
        site.link._line = late  # a call that was faster than that
        with pytest.raises(UnauthenticatedError, match="expired"):
            await late.coordinator.identify(pem)
        for call in (
            lambda: site.coordinator.identify(pem),
            lambda: site.coordinator.grant_upload("p" + "a" * 12, "r" + "a" * 12, 0, 0),
        ):
            with pytest.raises(UnavailableError, match="no connection to its server"):
                await call()
    site.link._line = None
    await site.enrol()
    site.relay.up.clear()
    site.link.reconnect()
    await site.connected()
    assert site.running is not None
    assert not site.running.done()
    with pytest.raises(ForbiddenError, match="was enrolled for aggregator"):  # it is another aggregator now
        await site.coordinator.identify(pem)


async def test_revoked_it_ends_and_says_why(world: World, site: Site) -> None:
    await site.enrol()
    await site.connect()
    revoke = control_pb2.RevokeParticipantRequest(participant=site.name, reason="the contract ended")
    await world.operator.control.RevokeParticipant(revoke, timeout=WAIT_S)
    assert site.running is not None
    with pytest.raises(UnauthenticatedError, match="the contract ended"):
        async with asyncio.timeout(WAIT_S):
            await site.running


async def test_replaced_by_another_process_with_its_identity_it_waits_and_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise two processes on copies of one directory would replace each other several times a second."""
    await site.enrol()
    await site.connect()
    site.relay.down.clear()
    stub: Any = GatewayServiceStub(site.link.open_channel())
    copy = stub.Attend()
    await copy.write(gateway_pb2.AttendRequest(hello=gateway_pb2.GatewayHello(protocol=1)))
    await site.disconnected()
    await asyncio.sleep(5 * link.FIRST_RETRY_S)
    assert site.link.connected == 1
    assert f"another process connected as aggregator {site.name} (run one process with this identity" in caplog.text


async def test_it_is_made_again_at_another_server(world: World, site: Site) -> None:
    await site.enrol()
    await site.connect()
    site.link.go_to("127.0.0.1:1", "")
    await site.disconnected()
    with pytest.raises(UnavailableError):
        site.link.line()
    site.link.go_to(world.addresses.main, "")
    await site.connected()
    assert await site.link.stands()
    assert site.link.connected == 2


async def test_a_run_submitted_after_the_server_listed_its_runs_keeps_its_uploads(
    world: World, site: Site, tmp_path: Path
) -> None:
    """The list is on its way to the gateway while the run is submitted and its first update arrives there."""
    spool, kept = Spool(tmp_path / "spool"), asyncio.Event()
    old = ref(ALICE, 1)
    committed(spool, old, chunks_of(values_of(1)))
    new: list[UploadRef] = []

    class Late(Worker):
        async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
            is_keep = order.WhichOneof("order") == "keep"
            if is_keep:
                new.append(ref(BOB, 2, run=await world.submit(job(size=1))))
                committed(spool, new[0], chunks_of(values_of(2)))
            done = await super().perform(order)
            if is_keep:
                kept.set()
            return done

    with ThreadPoolExecutor(2) as executor:
        node = IngestNode("north", spool)
        nodes = NodePool()
        nodes.add(FileNode(node.name, OwnCalls(node, executor), tmp_path, executor))
        site.link.worker = Late(
            node=node,
            nodes=nodes,
            node_of=lambda _: "",
            spool=spool,
            executor=executor,
            upload=PartialUpload(site.link.line, executor, lambda _: None),
            shut_out=lambda _caller, _error: None,
        )
        await site.enrol()
        await site.connect()
        async with asyncio.timeout(WAIT_S):
            await kept.wait()
    assert spool.newest_attempts() == {new[0].run: (0, 0)}


async def test_a_message_for_a_stream_that_has_ended_gives_the_streams_error(site: Site) -> None:
    """An aggregator ended with it when its server was killed while a participant came or went."""
    await site.enrol()
    async with site.link.open_channel() as channel:
        attending = GatewayServiceStub(channel).Attend()
        await attending.write(gateway_pb2.AttendRequest())  # no hello
        assert await attending.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(InvalidRequestError, match="must be hello"):
            async with as_server_errors("server"):
                await link._write(attending, gateway_pb2.AttendRequest())


async def test_an_order_that_fails_costs_no_link(site: Site) -> None:
    """The server sends this order when a gateway reconnects."""
    asked = asyncio.Event()

    class Failing(Idle):
        async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
            if order.WhichOneof("order") is None:
                return await super().perform(order)
            asked.set()
            return gateway_pb2.OrderDone(number=order.number, status=grpc.StatusCode.UNAVAILABLE.value[0])

    site.link.worker = Failing()
    await site.enrol()
    await site.connect()
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
    assert await site.link.stands()
    assert site.link.connected == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the server is asked to permit an upload, which it never answers."""
    found = asyncio.Event()

    async def silent(*_: object) -> None:
        found.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(BoundCoordinator, "grant_upload", silent)
    return found


async def test_a_call_whose_connection_ends_fails_at_once(site: Site, asked: asyncio.Event) -> None:
    """Else its participant would get no status, and wait until its own deadline."""
    await site.enrol()
    await site.connect()
    waiting = asyncio.create_task(site.coordinator.grant_upload("p" + "a" * 12, "r" + "a" * 12, 0, 0))
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        site.link.reconnect()
        with pytest.raises(UnavailableError, match="ended before it answered"):
            await waiting


async def test_a_caller_that_leaves_cancels_its_call(site: Site, asked: asyncio.Event) -> None:
    await site.enrol()
    await site.connect()
    waiting = asyncio.create_task(site.coordinator.grant_upload("p" + "a" * 12, "r" + "a" * 12, 0, 0))
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
