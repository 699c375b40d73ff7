"""gRPC servers: options, credentials, ports."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from atoll.server.config.limits import DEFAULT_LIMITS, Limits
from atoll.server.errors import ServerError, SetupError
from atoll.server.identity import Authority, ServerKeyPair
from atoll.server.ingest.transfer_meter import ignore
from atoll.server.rpc.bounds import MAX_OPERATOR_BYTES
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.interceptor import CallInterceptor
from atoll.server.rpc.port_bounds import Bounds, Enter, by_address
from atoll.wire.digest import MAX_CHUNK_BYTES
from atoll.wire.pacing import PING_ANSWER_S, PING_S

log = logging.getLogger(__name__)

_OPTIONS: dict[str, int] = {
    "grpc.max_send_message_length": MAX_CHUNK_BYTES + (1 << 20),
    "grpc.keepalive_time_ms": round(1000 * PING_S),
    "grpc.keepalive_timeout_ms": 5_000,
    # For every ping; without it gRPC waits 60 s, regardless of the two options above. A smaller value would break slow
    # uploads, whose answers to pings queue behind their data.
    "grpc.http2.ping_timeout_ms": round(1000 * PING_ANSWER_S),
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    "grpc.http2.max_pings_without_data": 0,
    # Bytes that a stream may send ahead of the message that its handler waits for. This bounds the memory that one
    # participant's streams can occupy. It is fixed, because gRPC's own probing would raise it.
    "grpc.http2.lookahead_bytes": 128 << 10,
    "grpc.http2.bdp_probe": 0,
    # Frame size for chunks, instead of 16 KiB: the work per frame was an eighth of all work at both ends.
    "grpc.http2.max_frame_size": 256 << 10,
    # Maximum read buffer of a connection; the default of 4 MiB would be held for each uploading connection.
    "grpc.experimental.tcp_max_read_chunk_size": 256 << 10,
    # No compression: tensors do not compress well, and without decompression there are no decompression bombs.
    "grpc.compression_enabled_algorithms_bitset": 1,
}
_CERTIFICATE_CHECK_S = 3600.0
MAX_INSIDE_BYTES = 64 << 20
ENROLMENT_AGE_S = 30.0
"""Seconds after which a connection to the enrolment port is asked to end; after the same time again it is closed."""
ENROLMENT_STREAMS = 8
ENROLMENT_BYTES = 64 << 10
"""Maximum bytes of a message on the enrolment port; a token and a certificate request take about 2 KiB."""
ENROLMENT_REQUESTS = 512
"""Maximum number of enrolment messages that arrive concurrently."""
ENROLMENT_REQUESTS_EACH = 32
"""The same for one address (IPv6: one /64 network)."""
ENROLMENT_REQUEST_S = 10.0
"""Seconds within which an enrolment request must have arrived."""


SIGN_IN_CONNECTIONS = 1024
"""Maximum number of connections to the sign-in port: anyone can open one, and each takes a file descriptor."""
SIGN_IN_IDLE_S = 60.0
"""Seconds without a call after which such a connection is closed; clients open another."""


class Port(StrEnum):
    """The kinds of ports."""

    MAIN = "main"
    TRANSFER = "transfer"
    ENROLMENT = "enrolment"
    INSIDE = "inside"
    SIGN_IN = "sign-in"


def make_server(
    port: Port,
    limits: Limits = DEFAULT_LIMITS,
    refused: Callable[[str], None] = ignore,
    enter: Enter = by_address,
    connections: Connections | None = None,
    within: Sequence[grpc.aio.ServerInterceptor] = (),
    ping_s: float = PING_S,
) -> grpc.aio.Server:
    """A gRPC server that does not listen yet.

    Args:
        port: kind of port. MAIN and SIGN_IN answer operators, with whole runs in an answer. Several processes may
            listen on one TRANSFER port. INSIDE connects the processes of one server, whose messages name whole cohorts.
        limits: limits on callers; INSIDE has none.
        refused: called with the code of every error that is sent to a caller.
        enter: admits every call, before its request is received.
        connections: closes connections of callers that do not read, once its port is set.
        within: further interceptors, which see admitted calls, and errors as raised by the handlers.
        ping_s: seconds without a message after which a connection is sent a keepalive ping.
    """
    options = _options_of(port, limits) | {"grpc.keepalive_time_ms": round(1000 * ping_s)}
    bounds = _bounds_of(port, limits, enter, connections or Connections())
    interceptor = CallInterceptor(bounds, refused)
    return grpc.aio.server(interceptors=(interceptor, *within), options=list(options.items()))


def _bounds_of(port: Port, limits: Limits, enter: Enter, connections: Connections) -> Bounds | None:
    if port is Port.INSIDE:
        return None
    if port is Port.ENROLMENT:
        return Bounds.nameless(
            limits,
            enter,
            connections,
            each=ENROLMENT_REQUESTS_EACH,
            most=ENROLMENT_REQUESTS,
            request_s=ENROLMENT_REQUEST_S,
        )
    return Bounds.named(limits, limits.message_bytes, enter, connections)


def _options_of(port: Port, limits: Limits) -> dict[str, int]:
    options = _OPTIONS | {"grpc.so_reuseport": int(port is Port.TRANSFER)}
    if port is Port.INSIDE:
        return options | {"grpc.max_receive_message_length": MAX_INSIDE_BYTES}
    options |= {
        "grpc.max_receive_message_length": limits.message_bytes,
        "grpc.max_metadata_size": limits.metadata_bytes,
        "grpc.absolute_max_metadata_size": 2 * limits.metadata_bytes,
        "grpc.max_concurrent_streams": limits.streams_per_connection,
        "grpc.max_allowed_incoming_connections": limits.connections,
        "grpc.server_handshake_timeout_ms": int(1000 * limits.handshake_s),
    }
    if port in (Port.MAIN, Port.SIGN_IN):
        options["grpc.max_send_message_length"] = MAX_OPERATOR_BYTES
    if port is Port.SIGN_IN:
        options |= {
            # the connections that ``front`` accepts, and as many that it has just closed
            "grpc.max_allowed_incoming_connections": 2 * min(SIGN_IN_CONNECTIONS, limits.connections),
            "grpc.max_connection_idle_ms": int(1000 * SIGN_IN_IDLE_S),
        }
    if port is Port.ENROLMENT:
        options |= {
            "grpc.max_receive_message_length": ENROLMENT_BYTES,
            "grpc.max_concurrent_streams": ENROLMENT_STREAMS,
            # the connections that ``front`` accepts, and as many that it has just closed
            "grpc.max_allowed_incoming_connections": 2 * limits.enrolment_connections,
            "grpc.max_connection_age_ms": int(1000 * ENROLMENT_AGE_S),
            "grpc.max_connection_age_grace_ms": int(1000 * ENROLMENT_AGE_S),
        }
    return options


def server_credentials(
    authority: Authority, names: Sequence[str], *, mutual: bool, clock: Callable[[], float]
) -> grpc.ServerCredentials:
    """TLS with the authority's server certificate, renewed while serving; ``mutual`` requires client certificates."""
    ca = authority.certificate_pem if mutual else None
    return credentials_of(lambda: authority.server_key_pair(names, now=clock()), ca)


def credentials_of(find: Callable[[], ServerKeyPair], ca: bytes | None) -> grpc.ServerCredentials:
    """TLS with the key pair from ``find``, which is called repeatedly; with ``ca`` it requires client certificates."""
    checked = time.monotonic()

    pair = find()

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key_pem, pair.certificate_pem)], root_certificates=ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called in gRPC's threads at each handshake; None keeps the certificate in use.

        gRPC treats any other result as new, even an equal one, and frees the old one while handshakes in other threads
        use it, which crashes. So each new certificate is returned only once.
        """
        nonlocal checked, pair
        if time.monotonic() - checked < _CERTIFICATE_CHECK_S:
            return None
        checked = time.monotonic()
        try:
            found = find()
        except ServerError as error:
            log.warning("the server's certificate could not be renewed; the old one stays: %s", error)
            return None
        if found.certificate_pem == pair.certificate_pem:
            return None
        pair = found
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type]  # the stubs lack the None that gRPC documents
        require_client_authentication=ca is not None,
    )


def bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """Listen on a port (0: any free one) and return it; without credentials, in plaintext.

    Raises:
        SetupError: if the port cannot be opened.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not _can_listen(host, port):  # gRPC would write its own line to standard error
        raise port_taken(address)
    try:
        bound = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise port_taken(address)
    return bound


def _can_listen(host: str, port: int) -> bool:
    """Whether a socket can be bound, including next to others that share the port on purpose; closes it at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return any(_can_bind(family, place) for family, _, _, _, place in found)


def _can_bind(family: int, place: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            tried.bind(place)
    except OSError:
        return False
    return True


def port_taken(address: str) -> SetupError:
    """The error for a port that cannot be opened."""
    return SetupError(
        "server.port",
        f"cannot listen on {address}: the port is taken, or the address is not of this machine",
        "choose another with --port, --enrol-port, --transfer-port or --host",
    )


async def add_health_and_reflection(server: grpc.aio.Server, services: Sequence[str]) -> HealthServicer:
    """Add the standard health and reflection services for these service names, all with the status SERVING."""
    health = HealthServicer()
    add_HealthServicer_to_server(health, server)
    for name in ("", *services):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([*services, reflection.SERVICE_NAME, "grpc.health.v1.Health"], server)
    return health
