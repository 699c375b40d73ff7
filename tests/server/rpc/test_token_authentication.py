"""The sign-in port on a real socket, with a fake provider's keys."""

import asyncio
import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from atoll.server.access.oidc import TokenEndedError, TokenVerifier
from atoll.server.config.config import ServerConfig
from atoll.server.config.limits import DEFAULT_LIMITS, Limits
from atoll.server.config.oidc_settings import OidcSettings
from atoll.server.errors import SetupError
from atoll.server.process import listeners, sign_in_port
from atoll.server.rpc import authentication
from atoll.server.rpc.operations import OPERATIONS
from atoll.wire.v1 import control_pb2, control_pb2_grpc, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.test_authentication import call
from tests.server.rpc.world import Caller, Key, World, job, refused_code, refused_detail

KEY = rsa.generate_private_key(65537, 2048)
SERVICE = control_pb2.DESCRIPTOR.services_by_name["ControlService"]


class Documents(http.server.BaseHTTPRequestHandler):
    """The provider's discovery document and keys."""

    def do_GET(self) -> None:
        issuer = f"http://{self.headers['Host']}"
        key = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "one"}
        found = {"keys": [key]} if self.path == "/keys" else {"issuer": issuer, "jwks_uri": f"{issuer}/keys"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def issuer() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Documents) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def limits() -> Limits:
    return DEFAULT_LIMITS


@pytest.fixture
async def world(tmp_path: Path, issuer: str, limits: Limits) -> AsyncIterator[World]:
    roles = {"admins": "administrator", "staff": "operator", "watch": "viewer"}
    oidc = OidcSettings.model_validate({"issuer": issuer, "client_id": "atoll", "roles": roles, "leeway_s": 0})
    async with World(tmp_path / "data", oidc=oidc, limits=limits) as opened:
        yield opened


def token(world: World, name: str, **changes: Any) -> str:
    now = time.time()
    claims: dict[str, Any] = {
        "iss": world.config.oidc.issuer,
        "aud": "atoll",
        "sub": name,
        "iat": now,
        "exp": now + 2 * WAIT_S,
    }
    claims["roles"] = [name.split("-", maxsplit=1)[0]]
    return jwt.encode(claims | changes, KEY, "RS256", headers={"kid": "one"})


async def signed_in(world: World, given: str, address: str = "") -> Caller:
    """A caller that sends this token with every call, to the sign-in port or another address."""

    class Bearer(grpc.AuthMetadataPlugin):
        def __call__(self, _: Any, callback: Any) -> None:
            callback((("authorization", f"Bearer {given}"),), None)

    both = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(world.ca), grpc.metadata_call_credentials(Bearer())
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.secure_channel(address or world.addresses.sign_in, both, options=options)
    return Caller(await world._stack.enter_async_context(channel))


async def test_an_operator_works_with_a_token_alone(world: World) -> None:
    dora, run = await signed_in(world, token(world, "staff-dora")), await world.submit(job())
    await dora.control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
    model = await dora.control.GetRunModel(control_pb2.GetRunModelRequest(run=run, round=0), timeout=WAIT_S)
    await dora.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=model.model.blob), timeout=WAIT_S)
    asked = control_pb2.ListAuditRequest(operator="oidc:staff-dora")
    found = (await world.operator.control.ListAudit(asked, timeout=WAIT_S)).entries
    assert [one.action for one in found] == ["model.read", "run.pause"]
    assert {one.credential for one in found} == {f"sign-in {world.config.oidc.issuer}"}


async def test_a_viewer_who_tries_everything_is_refused_everywhere(world: World) -> None:
    eve = await signed_in(world, token(world, "watch-eve"))
    for method in SERVICE.methods:
        found = await call(eve.channel, method)
        refused = found is not None and found.detail is not None and found.detail.code == "operator.role"
        reads = len(OPERATIONS[method.name].roles) == 4
        assert refused != reads, method.name


async def test_no_role_can_be_made_up(world: World) -> None:
    for claims in ({"roles": ["administrator"]}, {"roles": None}, {"role": "admins", "roles": []}):
        eve = await signed_in(world, token(world, "watch-eve", **claims))
        refused = await refused_code(eve.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S))
        assert refused == ("PERMISSION_DENIED", "oidc.role")


async def test_a_signed_in_operator_is_not_the_one_of_that_name_with_a_certificate(world: World) -> None:
    """Otherwise it could renew that operator's credential."""
    eve, key = await signed_in(world, token(world, "admin", roles=["watch"])), Key()
    request = control_pb2.CreateOperatorRequest(name="admin", csr_pem=key.csr, lifetime_s=60.0)
    refused = await refused_code(eve.control.CreateOperator(request, timeout=WAIT_S))
    assert refused == ("PERMISSION_DENIED", "operator.role")


async def test_a_stolen_token_ends_with_its_time_also_in_a_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REVOCATION_CHECK_S", 0.05)
    run = await world.submit(job())
    eve = await signed_in(world, token(world, "watch-eve"))
    watching = eve.control.WatchRun(control_pb2.WatchRunRequest(run=run))
    await watching.read()

    async def ended(*_: object) -> None:
        raise TokenEndedError("oidc.expired", "the token has ended", "sign in again")

    monkeypatch.setattr(TokenVerifier, "verify", ended)

    async def rest() -> None:
        while await watching.read():
            pass

    assert await refused_code(rest()) == ("UNAVAILABLE", "oidc.ended")
    refused = await refused_code(eve.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S))
    assert refused == ("UNAUTHENTICATED", "oidc.expired")


async def test_a_token_is_worth_nothing_on_the_main_port_and_a_certificate_nothing_here(world: World) -> None:
    channel = grpc.aio.secure_channel(world.addresses.sign_in, grpc.ssl_channel_credentials(world.ca))
    async with channel:
        asking = control_pb2_grpc.ControlServiceStub(channel).ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
        detail = await refused_detail(asking)
    assert detail.code == "oidc.missing"
    assert "atoll operator login" in detail.remedy
    bearer = (("authorization", f"Bearer {token(world, 'admins-eve')}"),)
    on_main = control_pb2_grpc.ControlServiceStub(await world.channel())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await on_main.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=bearer)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # the handshake fails


async def test_an_address_with_many_bad_tokens_is_refused_but_not_who_is_in(world: World) -> None:
    dora, asked = await signed_in(world, token(world, "watch-dora")), control_pb2.ListRunsRequest()
    await dora.control.ListRuns(asked, timeout=WAIT_S)
    eve = await signed_in(world, "made.up.token")
    codes = [
        (await refused_code(eve.control.ListRuns(asked, timeout=WAIT_S)))[1]
        for _ in range(world.config.limits.wrong_tokens_per_hour + 1)
    ]
    assert codes[0] == "oidc.token"
    assert codes[-1] == "oidc.guesses"
    await dora.control.ListRuns(asked, timeout=WAIT_S)


async def test_anyone_may_ask_where_to_sign_in(world: World) -> None:
    async with grpc.aio.secure_channel(world.addresses.sign_in, grpc.ssl_channel_credentials(world.ca)) as channel:
        stub = control_pb2_grpc.SignInServiceStub(channel)
        found = await stub.GetSignIn(control_pb2.GetSignInRequest(), timeout=WAIT_S)
    assert (found.issuer, found.client_id, found.token) == (world.config.oidc.issuer, "atoll", "id")
    assert list(found.scopes) == ["openid", "offline_access"]


@pytest.mark.parametrize("limits", [Limits(enrolments_per_minute=3)])
async def test_an_address_that_keeps_asking_where_to_sign_in_is_put_off(world: World) -> None:
    async with grpc.aio.secure_channel(world.addresses.sign_in, grpc.ssl_channel_credentials(world.ca)) as channel:
        ask = control_pb2_grpc.SignInServiceStub(channel).GetSignIn
        for _ in range(world.config.limits.enrolments_per_minute):
            await ask(control_pb2.GetSignInRequest(), timeout=WAIT_S)
        detail = await refused_detail(ask(control_pb2.GetSignInRequest(), timeout=WAIT_S))
    assert detail.code == "oidc.rate"
    assert detail.retry_after_s
    dora = await signed_in(world, token(world, "watch-dora"))
    await dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sign_in_port, "SIGN_IN_CONNECTIONS", 4)
    return 4


async def test_an_address_with_all_connections_does_not_keep_out_other_addresses(few: int, world: World) -> None:
    host, _, port = world.addresses.sign_in.rpartition(":")
    held = [await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0)) for _ in range(3 * few)]
    dora = await signed_in(world, token(world, "watch-dora"))
    await dora.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(held[0][0].read(), WAIT_S) == b""  # its oldest is closed
    for _, writer in held:
        writer.close()
    assert world.daemon._figures.registry.get_sample_value("atoll_refused_calls_total", {"code": "oidc.connections"})


async def test_the_audit_log_has_the_address_that_an_operator_signed_in_from(world: World) -> None:
    run = await world.submit(job())
    host, _, port = world.addresses.sign_in.rpartition(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as far:
        address = f"127.0.0.1:{far.sockets[0].getsockname()[1]}"
        dora = await signed_in(world, token(world, "staff-dora"), address)
        await dora.control.PauseRun(control_pb2.PauseRunRequest(run=run), timeout=WAIT_S)
        await dora.channel.close()
    asked = control_pb2.ListAuditRequest(operator="oidc:staff-dora")
    (found,) = (await world.operator.control.ListAudit(asked, timeout=WAIT_S)).entries
    assert found.address == "127.0.0.2"


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
    writer.close()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "SIGN_IN_IDLE_S", 0.5)


@pytest.mark.usefixtures("brief")
async def test_a_connection_that_makes_no_call_is_ended(world: World) -> None:
    host, _, port = world.addresses.sign_in.rpartition(":")
    context = ssl.create_default_context(cadata=world.ca.decode())
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))  # an empty SETTINGS frame
    assert b"connection idle" in await asyncio.wait_for(reader.read(), WAIT_S)  # and not for want of answers to pings
    writer.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"issuer": "https://x.example"}, "client_id is missing"),
        ({"issuer": "https://x.example", "client_id": "a"}, "roles is empty"),
        ({"issuer": "http://x.example", "client_id": "a", "roles": {"a": "viewer"}}, "is not a provider's address"),
        ({"issuer": "https://x.example", "client_id": "a", "roles": {"a": "root"}}, "administrator"),
        ({"issuers": "https://x.example"}, "issuers"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerConfig.model_validate({"oidc": settings})


def test_tokens_never_travel_in_plaintext() -> None:
    oidc = {"issuer": "https://x.example", "client_id": "a", "roles": {"a": "viewer"}}
    with pytest.raises(ValueError, match="tokens never travel in plaintext"):
        ServerConfig.model_validate({"oidc": oidc, "insecure": True})


async def test_authorities_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    oidc = {"issuer": "https://x.example", "client_id": "a", "roles": {"a": "viewer"}, "ca": tmp_path / "no.pem"}
    with pytest.raises(SetupError, match=r"no\.pem"):
        async with World(tmp_path / "data", oidc=OidcSettings.model_validate(oidc)):
            pass
