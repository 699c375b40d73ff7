"""Enrolment and renewal over real TLS."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import stat
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from atoll.client import Access, NotPermittedError, RefusedError, UnreachableError, UsageError, serve
from atoll.client._connection import enrolment, keys
from atoll.client._connection import identity as identities
from atoll.client._connection.endpoint import Endpoint
from atoll.client._session.renewal import due_in_s
from atoll.client.events import Connected, Disconnected, Renewed
from atoll.wire.errors import JoinTokenError
from atoll.wire.join_token import JoinToken
from tests.client.harness import FAST, MODEL, AddOne, running
from tests.client.tls import Authority, SecureFederation
from tests.patience import WAIT_S


@pytest.fixture
async def server() -> AsyncIterator[SecureFederation]:
    async with SecureFederation(MODEL) as federation:
        yield federation


async def enrol(token: str, state: Path, timeout_s: float = WAIT_S) -> identities.Identity:
    return await asyncio.to_thread(enrolment.enrol, token, state, timeout_s)


async def test_enrolment_stores_an_identity_that_only_its_owner_can_read(
    server: SecureFederation, tmp_path: Path
) -> None:
    state = tmp_path / "deep" / "state"
    identity = await enrol(server.token(), state)
    assert (identity.participant, identity.organisation, identity.kind) == ("p1", "clinic-a", "edge")
    assert identity.server_address == server.address
    path = state / "identity.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in state.iterdir()] == ["identity.json"]
    assert identities.load(state) == identity
    key = load_pem_private_key(identity.key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"
    assert "PRIVATE" not in repr(identity)


async def test_an_existing_identity_spends_no_token(server: SecureFederation, tmp_path: Path) -> None:
    first = await enrol(server.token(1), tmp_path)
    assert await enrol(server.token(2), tmp_path) == first
    assert list(server.spent) == ["t1"]
    assert await enrol(f"  {server.token(3)[:-4]}", tmp_path) == first  # an incomplete token, which is not needed


async def test_an_identity_of_another_federation_is_not_taken_for_one_of_the_tokens(
    server: SecureFederation, tmp_path: Path
) -> None:
    """Such an identity would fail to connect, over and over."""
    first = await enrol(server.token(1), tmp_path)
    elsewhere = JoinToken("127.0.0.1:7401", Authority().pem, "t2", "s3cret").encode()
    with pytest.raises(UsageError, match=f"identity of {first.participant} in another federation .* another --state"):
        await enrol(elsewhere, tmp_path)
    assert identities.load(tmp_path) == first


async def test_a_lost_answer_is_asked_for_again_with_the_same_key(server: SecureFederation, tmp_path: Path) -> None:
    server.lose_enrolments = 2
    assert (await enrol(server.token(), tmp_path)).participant == "p1"
    assert (server.lose_enrolments, len(server.spent)) == (0, 1)


async def test_the_key_outlives_an_enrolment_that_was_given_up(
    server: SecureFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over once two answers were lost."""
    server.lose_enrolments = lost = 1_000_000
    monkeypatch.setattr(enrolment, "now_s", lambda: 0.0 if server.lose_enrolments > lost - 2 else WAIT_S)
    with pytest.raises(UnreachableError, match="the answer was lost"):
        await enrol(server.token(), tmp_path)
    server.lose_enrolments = 0
    assert (await enrol(server.token(), tmp_path)).participant == "p1"


def test_a_last_try_with_too_little_time_leaves_the_reason_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes half a second by the test's clock."""
    tries: list[float] = []
    monkeypatch.setattr(enrolment, "now_s", lambda: 0.5 * len(tries))

    def call(stub: object, left_s: float) -> None:
        del stub
        tries.append(left_s)
        first = len(tries) == 1
        code = grpc.StatusCode.UNAVAILABLE if first else grpc.StatusCode.DEADLINE_EXCEEDED
        details = "the disk is full" if first else "Deadline Exceeded"
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    port = enrolment.EnrolmentPort("127.0.0.1:1", Authority().pem)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1: the disk is full"):
        port.call("the join token", 2.0, call)
    assert len(tries) > 1


@pytest.mark.parametrize("retry_after_s", [None, 0.01])
async def test_a_server_that_is_busy_with_others_is_asked_again(
    server: SecureFederation, tmp_path: Path, retry_after_s: float | None
) -> None:
    """A refusal without a detail comes from gRPC itself, or from a connection that was closed to make room."""
    server.put_off_enrolments = 3
    server.put_off_s = retry_after_s
    assert (await enrol(server.token(), tmp_path)).participant == "p1"
    assert server.put_off_enrolments == 0


async def test_an_enrolment_that_is_refused_for_good_is_not_tried_again(
    server: SecureFederation, tmp_path: Path
) -> None:
    server.reject_enrolments = 2
    with pytest.raises(RefusedError, match="not a request"):
        await enrol(server.token(), tmp_path)
    assert server.reject_enrolments == 1


async def test_a_spent_token_is_refused_with_the_remedy(server: SecureFederation, tmp_path: Path) -> None:
    await enrol(server.token(), tmp_path / "one")
    with pytest.raises(NotPermittedError, match=r"used before.*ask for a new one") as caught:
        await enrol(server.token(), tmp_path / "two")
    assert caught.value.exit_code == 4


async def test_a_mistyped_token_is_refused(server: SecureFederation, tmp_path: Path) -> None:
    with pytest.raises(JoinTokenError):
        await enrol(server.token()[:-1], tmp_path)


async def test_only_the_authority_in_the_token_is_trusted(
    server: SecureFederation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client does not retry: another try cannot make the server trusted."""
    token = JoinToken(f"127.0.0.1:{server.enrolment_port}", Authority().pem, "t1", "s3cret").encode()
    with pytest.raises(UnreachableError, match="belongs to another federation than the token"):
        await enrol(token, tmp_path, timeout_s=WAIT_S)
    assert "trying again" not in caplog.text
    assert not server.spent


async def test_the_enrolment_port_is_named_where_it_was_taken_for_the_main_port(
    server: SecureFederation, tmp_path: Path
) -> None:
    identity = await enrol(server.token(), tmp_path)
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(f"127.0.0.1:{server.enrolment_port}", identity))
    with pytest.raises(RefusedError, match=r"it may be the enrolment port; give the main port \(by default 7400"):
        await run.finished()


async def test_a_port_without_tls_is_named_as_such(server: SecureFederation, tmp_path: Path) -> None:
    metrics = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    serving = asyncio.create_task(asyncio.to_thread(metrics.serve_forever, 0.05))
    token = JoinToken(f"127.0.0.1:{metrics.server_port}", server.authority.pem, "t1", "s3cret").encode()
    try:
        with pytest.raises(UnreachableError, match="does not speak TLS: it may be the metrics port"):
            await enrol(token, tmp_path, timeout_s=WAIT_S)
    finally:
        metrics.shutdown()
        await serving
        metrics.server_close()


async def test_a_certificate_for_another_key_is_refused(server: SecureFederation, tmp_path: Path) -> None:
    server.other_key = True
    with pytest.raises(RefusedError, match="another key"):
        await enrol(server.token(), tmp_path)
    assert identities.load(tmp_path) is None


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(UsageError, match=r"identity.json is not an identity"):
        identities.load(tmp_path)


async def test_a_session_over_mutual_tls(server: SecureFederation, tmp_path: Path) -> None:
    """The token is spent off the loop: enrolment blocks."""
    await enrol(server.token(), tmp_path / "state")
    session = asyncio.create_task(serve(AddOne(), Access(state=tmp_path / "state"), max_rounds=1, limits=FAST))
    assert (await server.hello()).examples == 7
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
    assert (await session).reported == 1
    assert ("atoll-insecure-participant", "p1") not in server.metadata


async def test_a_stranger_is_not_let_in(server: SecureFederation, tmp_path: Path) -> None:
    identity = await enrol(server.token(), tmp_path)
    key_pem = keys.make_key()
    certificate = Authority().client_certificate(keys.make_csr(key_pem), "p1", 600.0)
    stranger = dataclasses.replace(identity, key_pem=key_pem, certificate_pem=certificate.decode())
    run = running(
        server,
        AddOne(),
        tmp_path,
        endpoint=Endpoint(server.address, stranger),
        limits=dataclasses.replace(FAST, give_up_after_s=0.1),
    )
    with pytest.raises(UnreachableError):
        await run.finished()


async def test_the_certificate_is_renewed_and_used(tmp_path: Path) -> None:
    async with SecureFederation(MODEL, lifetime_s=60.0) as server:
        server.refuse_renewals = 1
        server.remaining_s = 0.0  # so renewal is due at once
        identity = await enrol(server.token(), tmp_path)
        server.lifetime_s = 600.0
        run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity))
        await run.saw(Renewed)
        await run.saw(Connected, times=2)
        fresh = identities.load(tmp_path)
        assert fresh is not None
        assert fresh.key_pem != identity.key_pem
        assert fresh.lifetime_s > 500
        assert server.peers == ["p1 v0", "p1 v0"]
        server.invite()
        np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)
        assert run.session.endpoint.identity == identity
        await run.stop()


async def test_an_expired_certificate_says_what_to_do(server: SecureFederation, tmp_path: Path) -> None:
    server.lifetime_s = 0.0
    identity = await enrol(server.token(), tmp_path)
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity))
    with pytest.raises(NotPermittedError, match=r"expired on .* enrol with a new join token .*it expired long ago"):
        await run.finished()
    assert server.recoveries == 1


async def test_a_certificate_that_expired_while_it_was_away_is_renewed(
    server: SecureFederation, tmp_path: Path
) -> None:
    server.lifetime_s, server.grace = 0.0, True
    identity = await enrol(server.token(), tmp_path)
    assert identity.enrolment_address == f"127.0.0.1:{server.enrolment_port}"
    server.lifetime_s = 600.0
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity))
    await run.saw(Renewed)
    await run.saw(Connected)
    fresh = identities.load(tmp_path)
    assert fresh is not None
    assert fresh.key_pem != identity.key_pem
    assert fresh.enrolment_address == identity.enrolment_address
    assert server.recoveries == 1
    await run.stop()


async def test_a_server_that_is_away_is_waited_for_with_an_expired_certificate(
    server: SecureFederation, tmp_path: Path
) -> None:
    server.lifetime_s, server.grace = 0.0, True
    identity = await enrol(server.token(), tmp_path)
    server.lifetime_s = 600.0
    await server.kill()
    limits = dataclasses.replace(FAST, call_s=2.0)  # for each renewal
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity), limits=limits)
    await run.saw(Disconnected, times=2)
    await server.start()
    await run.saw(Connected)
    await run.stop()


async def test_a_server_that_gives_out_expired_certificates_is_not_asked_without_a_pause(
    server: SecureFederation, tmp_path: Path
) -> None:
    server.lifetime_s, server.grace = 0.0, True
    identity = await enrol(server.token(), tmp_path)
    limits = dataclasses.replace(FAST, backoff_cap_s=60.0, give_up_after_s=1.0)
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity), limits=limits)
    with pytest.raises(UnreachableError):
        await run.finished()
    assert server.recoveries == 1


async def test_a_clock_that_is_an_hour_fast_does_not_make_a_certificate_expire(
    server: SecureFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's clock ten minutes of its life are left; by this machine's clock it expired fifty minutes ago."""
    identity = await enrol(server.token(), tmp_path)
    run = running(server, AddOne(), tmp_path, endpoint=Endpoint(server.address, identity))
    await run.saw(Connected)
    monkeypatch.setattr(identities, "wall_s", lambda: time.time() + 3600.0)
    assert identity.expired()
    await server.kill()
    await run.saw(Disconnected, times=3)
    await server.start()
    await run.saw(Connected, times=2)
    await run.stop()


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_renewal_is_due_at_two_thirds(jitter: float) -> None:
    due = due_in_s(lifetime_s=900.0, remaining_s=900.0, jitter=jitter)
    assert 0.6 * 900 < due <= 600.0
    assert due_in_s(900.0, 300.0, jitter) == 0.0
    assert due_in_s(900.0, -5.0, jitter) == 0.0


def test_the_request_has_no_subject() -> None:
    """The server assigns the participant's id."""
    from cryptography import x509  # noqa: PLC0415

    csr = x509.load_pem_x509_csr(keys.make_csr(keys.make_key()))
    assert csr.is_signature_valid
    assert not list(csr.subject)
    assert json.dumps(csr.subject.rfc4514_string()) == '""'


def test_grpc_takes_the_credentials() -> None:
    authority = Authority()
    key_pem = keys.make_key()
    certificate = authority.client_certificate(keys.make_csr(key_pem), "p1", 60.0).decode()
    identity = identities.Identity("p1", "o", "edge", "127.0.0.1:1", certificate, authority.pem.decode(), key_pem)
    assert isinstance(identity.credentials(), grpc.ChannelCredentials)
