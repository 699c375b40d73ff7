"""Gets an aggregator's certificates: its identity by a join token, renewals, and its server certificate."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import atoll.server
from atoll.server.aggregator.credential import Credential
from atoll.server.errors import SetupError, UnavailableError
from atoll.server.identity import ServerKeyPair
from atoll.server.identity.files import PRIVATE_MODE, read_private, write_atomic
from atoll.server.identity.requests import KeyWithRequest
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.wire.errors import JoinTokenError
from atoll.wire.join_token import JoinToken
from atoll.wire.pacing import ping_interval_s
from atoll.wire.renewal import renewal_proof
from atoll.wire.v1 import enrolment_pb2, gateway_pb2
from atoll.wire.v1.enrolment_pb2_grpc import EnrolmentServiceStub, RenewalServiceStub
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceStub

T = TypeVar("T")
log = logging.getLogger(__name__)

CALL_S = 30.0
PATIENCE_S = 60.0
"""Seconds that the first start waits for a server that does not answer."""
RETRY_S = 1.0
RENEW_AT = 1 / 3
"""A certificate is renewed when this share of its lifetime remains."""
SERVER = "server"
SERVER_FILE = "server.pem"


async def enrol(text: str, folder: Path) -> Credential:
    """Spend a join token. The key is kept until the answer has arrived, so that a lost answer does not waste the token.

    Raises:
        SetupError: for a malformed token, or one that is not of kind aggregator.
        ServerError: if the server refuses it, or does not answer.
    """
    try:
        token = JoinToken.decode(text)
    except JoinTokenError as error:
        raise SetupError("aggregator.token", str(error)) from None
    pending = folder / f"enrolling-{hashlib.sha256(token.token_id.encode()).hexdigest()[:16]}.pem"
    key = _kept_key(pending)
    request = enrolment_pb2.EnrolRequest(
        token_id=token.token_id,
        secret=token.secret,
        csr_pem=key.csr_pem,
        client_version=atoll.server.__version__,
        aggregator=True,
    )

    async def ask() -> enrolment_pb2.EnrolResponse:
        credentials = grpc.ssl_channel_credentials(token.ca_certificate_pem)
        async with grpc.aio.secure_channel(token.address, credentials) as channel, as_server_errors(SERVER):
            found: enrolment_pb2.EnrolResponse = await EnrolmentServiceStub(channel).Enrol(request, timeout=CALL_S)
            return found

    answer = await _patiently(ask)
    credential = Credential(
        name=answer.participant,
        organisation=answer.organisation,
        address=answer.server_address,
        enrolment_address=token.address,
        ca_certificate=answer.ca_certificate_pem.decode("ascii"),
        certificate=answer.certificate_pem.decode("ascii"),
        key=key.key_pem.decode("ascii"),
    )
    credential.write(folder)
    pending.unlink(missing_ok=True)
    log.info("enrolled as aggregator %s of organisation %s", credential.name, credential.organisation)
    return credential


async def renewed(credential: Credential, address: str) -> Credential:
    """Renew the credential with a new key; uses the enrolment port if the old certificate has expired.

    Raises:
        ServerError: if the server refuses, or does not answer.
    """
    made = KeyWithRequest.make()
    if credential.peer.not_after > time.time():
        request = enrolment_pb2.RenewRequest(csr_pem=made.csr_pem)
        own = credential.channel_credentials()
        async with grpc.aio.secure_channel(address, own) as channel, as_server_errors(SERVER):
            fresh = (await RenewalServiceStub(channel).Renew(request, timeout=CALL_S)).certificate_pem
    else:
        expired = enrolment_pb2.RenewExpiredRequest(
            certificate_pem=credential.certificate.encode(),
            csr_pem=made.csr_pem,
            signature=_signature(credential.key.encode(), made.csr_pem),
        )
        authority = grpc.ssl_channel_credentials(credential.ca_certificate.encode())
        port = credential.enrolment_address
        async with grpc.aio.secure_channel(port, authority) as channel, as_server_errors(SERVER):
            fresh = (await EnrolmentServiceStub(channel).RenewExpired(expired, timeout=CALL_S)).certificate_pem
    return replace(credential, certificate=fresh.decode("ascii"), key=made.key_pem.decode("ascii"))


def due_in_s(not_before: float, not_after: float) -> float:
    """Seconds until a certificate should be renewed."""
    return max(0.0, not_after - RENEW_AT * (not_after - not_before) - time.time())


@dataclass(frozen=True)
class Serving:
    """The aggregator's server certificate and the names in it.

    ``ping_s`` is the server's interval of keepalive pings if the server was asked for the certificate just now.
    """

    pair: ServerKeyPair
    names: tuple[str, ...]
    not_before: float
    ping_s: float | None = None


async def server_certificate(credential: Credential, address: str, folder: Path, *, fresh: bool = False) -> Serving:
    """The certificate on disk while it has a third of its lifetime left; otherwise a new one from the server.

    Raises:
        ServerError: if the server refuses, or does not answer.
    """
    path = folder / SERVER_FILE
    kept = None if fresh else _kept_server(path)
    if kept is not None and due_in_s(kept.not_before, kept.pair.not_after) > 0:
        return kept
    made = KeyWithRequest.make()

    async def ask() -> gateway_pb2.CertifyServerResponse:
        own = credential.channel_credentials()
        request = gateway_pb2.CertifyServerRequest(csr_pem=made.csr_pem)
        async with grpc.aio.secure_channel(address, own) as channel, as_server_errors(SERVER):
            stub = GatewayServiceStub(channel)
            found: gateway_pb2.CertifyServerResponse = await stub.CertifyServer(request, timeout=CALL_S)
            return found

    try:
        answer = await _patiently(ask)
    except UnavailableError:
        if kept is not None and kept.pair.not_after > time.time():
            return kept
        raise
    write_atomic(path, made.key_pem + answer.certificate_pem, mode=PRIVATE_MODE)
    found = _kept_server(path)
    if found is None:
        raise SetupError("aggregator.certificate", "the server sent no certificate that can be read")
    return replace(found, ping_s=ping_interval_s(answer.ping_s))


async def _patiently(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except UnavailableError as error:
            if time.monotonic() >= until:
                raise
            log.warning("the server does not answer, trying again: %s", error.logged)
            await asyncio.sleep(RETRY_S)


def _kept_key(path: Path) -> KeyWithRequest:
    """The key of an earlier attempt with the same token, or a new one."""
    try:
        return KeyWithRequest.of(_private_key(read_private(path)))
    except (OSError, ValueError, SetupError):
        made = KeyWithRequest.make()
        write_atomic(path, made.key_pem, mode=PRIVATE_MODE)
        return made


def _kept_server(path: Path) -> Serving | None:
    try:
        data = read_private(path)
        certificate = x509.load_pem_x509_certificate(data)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return None
    head = data.index(b"-----BEGIN CERTIFICATE-----")
    pair = ServerKeyPair(data[head:], data[:head], certificate.not_valid_after_utc.timestamp())
    hosts = tuple(str(name.value) for name in names)
    return Serving(pair, hosts, certificate.not_valid_before_utc.timestamp())


def _signature(key_pem: bytes, csr_pem: bytes) -> bytes:
    return _private_key(key_pem).sign(renewal_proof(csr_pem), ec.ECDSA(hashes.SHA256()))


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SetupError("aggregator.credential", "the credential's key is not an elliptic-curve key")
    return key
