"""Which roles may call which RPC. The table has every RPC of the contract; a new RPC that is missing fails here."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError, TooLateError, UnauthenticatedError, UnavailableError
from atoll.server.identity import Authority, Role, new_server_id
from atoll.server.ingest.coordinator_api import Caller as Identity
from atoll.server.rpc import authentication
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import FORWARDED, Authenticator, Watch, certificate_of
from atoll.wire.loopback import INSECURE_OPERATOR, INSECURE_PARTICIPANT
from atoll.wire.v1 import (
    control_pb2,
    enrolment_pb2,
    gateway_pb2,
    ingest_pb2,
    participation_pb2,
    tensors_pb2,
    transfer_pb2,
)
from tests.patience import WAIT_S
from tests.server.rpc.world import Participant, Refusal, World, each, refusal, refused_code

OPERATOR, PARTICIPANT, EITHER, INSIDE, ANYBODY = "operator", "participant", "either", "inside", "anybody"
AGGREGATOR = "aggregator"
CALLERS = {
    "ControlService": {
        "UploadModel": OPERATOR,
        "SubmitRun": OPERATOR,
        "ListRuns": OPERATOR,
        "GetRun": OPERATOR,
        "WatchRun": OPERATOR,
        "PauseRun": OPERATOR,
        "ResumeRun": OPERATOR,
        "CancelRun": OPERATOR,
        "ExtendRun": OPERATOR,
        "DeleteRun": OPERATOR,
        "GetRunModel": OPERATOR,
        "CreateToken": OPERATOR,
        "ListTokens": OPERATOR,
        "VoidTokens": OPERATOR,
        "ListParticipants": OPERATOR,
        "RevokeParticipant": OPERATOR,
        "CreateOperator": OPERATOR,
        "ListOperators": OPERATOR,
        "SetOperatorRole": OPERATOR,
        "WhoAmI": OPERATOR,
        "RevokeOperator": OPERATOR,
        "GetServerInfo": OPERATOR,
        "ListLogLines": OPERATOR,
        "ListAudit": OPERATOR,
        "CreateProject": OPERATOR,
        "ListProjects": OPERATOR,
        "SetProjectQuota": OPERATOR,
        "CloseProject": OPERATOR,
        "PruneStorage": OPERATOR,
        "ListPopulations": OPERATOR,
        "ListCharges": OPERATOR,
        "GetParticipantPrivacy": OPERATOR,
        "LimitPopulation": OPERATOR,
    },
    "ParticipationService": {"CheckIn": PARTICIPANT, "CheckInOnce": PARTICIPANT},
    "SignInService": {"GetSignIn": "on a port of its own"},
    "RenewalService": {"Renew": PARTICIPANT},
    "TransferService": {
        "GetManifest": EITHER,
        "Download": EITHER,
        "Upload": PARTICIPANT,
        "GetUploadStatus": PARTICIPANT,
        "Report": PARTICIPANT,
    },
    "EnrolmentService": {"Enrol": ANYBODY, "RenewExpired": ANYBODY},
    "CoordinatorService": {  # and the server's own processes
        "Identify": AGGREGATOR,
        "GrantUpload": AGGREGATOR,
        "GrantDownload": AGGREGATOR,
        "Commit": AGGREGATOR,
    },
    "GatewayService": {
        "Attend": AGGREGATOR,
        "Work": AGGREGATOR,
        "GetPartialStatus": AGGREGATOR,
        "PutPartial": AGGREGATOR,
        "CertifyServer": AGGREGATOR,
        "Enrol": AGGREGATOR,
    },
    "WorkerService": {
        "Fold": INSIDE,
        "WritePartial": INSIDE,
        "DropRound": INSIDE,
        "DropRun": INSIDE,
        "EndCalls": INSIDE,
        "GetMetrics": INSIDE,
    },
}
FILES = (control_pb2, enrolment_pb2, gateway_pb2, ingest_pb2, participation_pb2, tensors_pb2, transfer_pb2)
SERVICES: dict[str, ServiceDescriptor] = {
    name: service for file in FILES for name, service in file.DESCRIPTOR.services_by_name.items()
}
METHODS = [
    pytest.param(method, CALLERS.get(service, {}).get(method.name), id=f"{service}.{method.name}")
    for service in SERVICES
    for method in SERVICES[service].methods
]


def test_every_rpc_is_in_the_table() -> None:
    assert {name: {method.name for method in service.methods} for name, service in SERVICES.items()} == {
        name: set(methods) for name, methods in CALLERS.items()
    }


async def call(channel: grpc.aio.Channel, method: MethodDescriptor) -> Refusal | None:
    """Call with one empty message, which no role check may wait for; returns the refusal, or None."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    begin: Any = getattr(channel, kind)(path)
    running = begin(each([b""]) if method.client_streaming else b"", timeout=WAIT_S)
    answer = running.read() if method.server_streaming else running
    try:
        return await refusal(answer)
    except AssertionError:
        running.cancel()
        return None


def wrong_role(found: Refusal | None) -> bool:
    return found is not None and found.detail is not None and found.detail.code == "certificate.role"


@pytest.fixture
async def one_world(world: World, alice: Participant) -> tuple[World, Participant]:
    return world, alice


async def test_each_rpc_takes_its_callers_and_no_others(one_world: tuple[World, Participant]) -> None:
    world, alice = one_world
    for parameters in METHODS:
        method, role = parameters.values
        assert isinstance(method, MethodDescriptor)
        by_operator, by_participant = await call(world.operator.channel, method), await call(alice.channel, method)
        match role:
            case "operator":
                assert wrong_role(by_participant), method.full_name
                assert not wrong_role(by_operator), method.full_name
            case "participant":
                assert wrong_role(by_operator), method.full_name
                assert not wrong_role(by_participant), method.full_name
            case "either":
                assert not wrong_role(by_operator), method.full_name
                assert not wrong_role(by_participant), method.full_name
            case "aggregator":
                assert wrong_role(by_operator), method.full_name
                assert wrong_role(by_participant), method.full_name
            case _:  # not on the main port at all
                for found in (by_operator, by_participant):
                    assert found is not None, method.full_name
                    assert found.status is grpc.StatusCode.UNIMPLEMENTED, method.full_name


async def test_the_enrolment_port_serves_enrolment_alone(world: World) -> None:
    channel = await world.channel(address=world.addresses.enrolment)
    for parameters in METHODS:
        method, role = parameters.values
        assert isinstance(method, MethodDescriptor)
        found = await call(channel, method)
        assert found is not None, method.full_name
        assert (found.status is grpc.StatusCode.UNIMPLEMENTED) == (role != ANYBODY), method.full_name


async def test_the_refusal_says_what_is_needed(alice: Participant) -> None:
    found = await refusal(alice.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S))
    assert found.detail is not None
    assert found.detail.code == "certificate.role"
    assert "an operator's certificate" in found.detail.message
    assert "an operator" in found.detail.remedy


class TestInsecure:
    async def test_metadata_says_who_calls(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", insecure=True) as world:
            operator = await world.plain({INSECURE_OPERATOR: "1"})
            assert (await operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)).runs == []
            participant = await world.plain({INSECURE_PARTICIPANT: "paaaaaaaaaaaa"})
            denied = participant.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert await refused_code(denied) == ("PERMISSION_DENIED", "certificate.role")

    async def test_missing_and_impossible_names_are_refused(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", insecure=True) as world:
            nobody = await world.plain({})
            call = nobody.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert await refused_code(call) == ("UNAUTHENTICATED", "insecure.participant")
            odd = await world.plain({INSECURE_PARTICIPANT: "../etc"})
            call = odd.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert await refused_code(call) == ("INVALID_ARGUMENT", "identity.name")


class Revocable:
    """A coordinator that knows one certificate until it is revoked."""

    def __init__(self) -> None:
        self.shut = False
        self.asked = 0

    async def identify(self, certificate_pem: bytes) -> Identity:
        self.asked += 1
        if self.shut or certificate_pem != b"pem":
            raise UnauthenticatedError("certificate.revoked", "revoked")
        return Identity(Role.PARTICIPANT, "paaaaaaaaaaaa")


class FakeContext:
    """The part of a call's context that the authenticator uses."""

    pem = b"pem"
    metadata: tuple[tuple[str, str | bytes], ...] = ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self.pem]}

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Do nothing: the calls of these tests do not end."""


@pytest.fixture
def fake() -> Revocable:
    return Revocable()


def watch_at(fake: Revocable) -> Watch:
    context: Any = FakeContext()
    coordinator: Any = fake
    return Watch(Authenticator(coordinator, Admission(Limits()), insecure=False), context)


async def test_a_certificate_is_needed(fake: Revocable) -> None:
    coordinator: Any = fake
    context: Any = FakeContext()
    context.auth_context = dict
    with pytest.raises(UnauthenticatedError, match="no client certificate"):
        await Authenticator(coordinator, Admission(Limits()), insecure=False).identify(context)


def test_only_a_server_may_pass_on_calls_of_others(tmp_path: Path) -> None:
    """Its certificate must still be valid, since a connection may outlive it."""
    now = time.time()
    authority = Authority.open(tmp_path / "ca", now=now)
    context: Any = FakeContext()
    context.metadata = ((FORWARDED, b"of another"),)
    context.pem = authority.identify_server(new_server_id(), now=now, lifetime_s=60.0).issued.pem
    assert certificate_of(context) == b"of another"
    for pem in (
        authority.identify_server(new_server_id(), now=now - 100.0, lifetime_s=60.0).issued.pem,
        authority.issue_operator("admin", now=now).issued.pem,
    ):
        context.pem = pem
        with pytest.raises(UnauthenticatedError, match="may not pass calls of others on"):
            certificate_of(context)
    context.metadata = ()
    assert certificate_of(context) == context.pem


class TestWatch:
    async def test_a_look_is_cheap(self, fake: Revocable) -> None:
        watch = watch_at(fake)
        for _ in range(100):
            await watch.check()
        assert fake.asked == 0

    async def test_messages_pass_until_the_end(self, fake: Revocable) -> None:
        assert [item async for item in watch_at(fake).over(each([b"1", b"2", b"3"]))] == [b"1", b"2", b"3"]

    async def test_a_revoked_caller_is_cut_off_between_messages(
        self, fake: Revocable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if it is silent."""
        monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 0.01)
        fake.shut = True

        async def silent() -> AsyncIterator[bytes]:
            yield b"1"
            await asyncio.Event().wait()

        messages = watch_at(fake).over(silent())
        await asyncio.wait_for(anext(messages), WAIT_S)
        with pytest.raises(UnauthenticatedError):
            await asyncio.wait_for(anext(messages), WAIT_S)

    async def test_a_stream_that_sends_nothing_is_broken_off(
        self, fake: Revocable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 0.01)
        ended = asyncio.Event()

        async def silent() -> AsyncIterator[bytes]:
            try:
                yield b"1"
                await asyncio.Event().wait()
            finally:
                ended.set()

        messages = watch_at(fake).over(silent(), idle_s=0.05)
        assert await anext(messages) == b"1"
        started = time.monotonic()
        with pytest.raises(UnavailableError, match=r"0\.05 s") as refused:
            await asyncio.wait_for(anext(messages), WAIT_S)
        assert refused.value.detail.code == "stream.idle"
        assert time.monotonic() - started >= 0.05
        await asyncio.wait_for(ended.wait(), WAIT_S)

    async def test_a_stream_that_trickles_is_broken_off(self, fake: Revocable) -> None:
        async def trickle() -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield b"x"

        with pytest.raises(LimitExceededError, match=r"at least 1024 bytes/s") as refused:
            [_ async for _ in watch_at(fake).over(trickle(), idle_s=0.1)]
        assert (refused.value.detail.code, refused.value.detail.retry_after_s) == ("stream.slow", 1.0)

    async def test_only_the_time_that_the_server_waits_counts(self, fake: Revocable) -> None:
        """A slow server does not blame its participants."""
        taken = 0
        async for _ in watch_at(fake).over(each([b"x"] * 10), idle_s=0.1):
            await asyncio.sleep(0.02)
            taken += 1
        assert taken == 10

    async def test_a_stream_that_brings_enough_goes_on(self, fake: Revocable) -> None:
        async def steady() -> AsyncIterator[bytes]:
            for _ in range(30):
                await asyncio.sleep(0.01)
                yield bytes(1024)

        assert len([message async for message in watch_at(fake).over(steady(), idle_s=0.1)]) == 30

    async def test_a_stream_ends_once_it_is_not_wanted(self, fake: Revocable, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even if it is silent."""
        monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 0.01)
        monkeypatch.setattr(authentication, "WANTED_CHECK_S", 0.01)

        async def silent() -> AsyncIterator[bytes]:
            yield b"1"
            await asyncio.Event().wait()

        async def over() -> None:
            raise TooLateError("round.over", "round 1 is over")

        watch = watch_at(fake)
        watch.only_while(over)
        messages = watch.over(silent())
        with pytest.raises(TooLateError):
            [_ async for _ in messages]

    async def test_an_event_is_waited_for_as_long_as_the_caller_is_welcome(
        self, fake: Revocable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 0.01)
        event = asyncio.Event()
        event.set()
        await asyncio.wait_for(watch_at(fake).until(event), WAIT_S)
        fake.shut = True
        with pytest.raises(UnauthenticatedError):
            await asyncio.wait_for(watch_at(fake).until(asyncio.Event()), WAIT_S)
