"""Forwards participants' enrolments and renewals through a gateway to the server, which records certificates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from atoll.server.errors import InvalidRequestError
from atoll.server.gateway.site.link import Line
from atoll.server.rpc.authentication import Authenticator, Context, certificate_of
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.internal_calls import as_server_errors, closing_is_unavailability
from atoll.server.rpc.peers import network_of
from atoll.wire.pacing import PING_ANSWER_S, PING_S
from atoll.wire.v1 import enrolment_pb2, gateway_pb2
from atoll.wire.v1.enrolment_pb2_grpc import EnrolmentServiceServicer, EnrolmentServiceStub, RenewalServiceServicer

CALL_S = 30.0
SERVER = "server"
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # notice a server that is gone without a FIN or RST before the callers' time is over
    ("grpc.keepalive_time_ms", round(1000 * PING_S)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", round(1000 * PING_ANSWER_S)),
)


class EnrolmentPort:
    """The server's enrolment port.

    Args:
        address: host:port.
        ca_certificate_pem: the federation's authority certificate.
        tls_name: a name in the server's certificate; empty for the host in the address.
    """

    def __init__(self, address: str, ca_certificate_pem: bytes, tls_name: str = "") -> None:
        credentials = grpc.ssl_channel_credentials(ca_certificate_pem)
        named = (("grpc.ssl_target_name_override", tls_name),) if tls_name else ()
        self._channel = grpc.aio.secure_channel(address, credentials, options=(*_OPTIONS, *named))
        self.stub = EnrolmentServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


class HasEnrolmentStub(Protocol):
    """Gives access to the server's enrolment service."""

    @property
    def stub(self) -> Any:
        """The service's stub."""
        ...


class PassingEnrolment(EnrolmentServiceServicer):
    """Forwards join tokens and expired certificates.

    Join tokens go over the gateway's link, so that the server knows which gateway reports a newcomer's address.

    Args:
        line: the connection to the server.
        server: its enrolment port.
        address: address of the gateway's main port, which participants connect to.
        rate: limits attempts by address, before the server does.
        origin: returns the peer that a call originates from, given its immediate peer.
    """

    def __init__(
        self,
        line: Callable[[], Line],
        server: HasEnrolmentStub,
        address: str,
        rate: EnrolmentRate,
        origin: Callable[[str], str],
    ) -> None:
        self._line = line
        self._server = server
        self._address = address
        self._rate = rate
        self._origin = origin

    async def Enrol(self, request: enrolment_pb2.EnrolRequest, context: Context) -> enrolment_pb2.EnrolResponse:
        """Redeem a join token at the server; the participant then connects to this gateway."""
        source = network_of(self._origin(context.peer()))
        passed = gateway_pb2.GatewayServiceEnrolRequest(request=request, source=source)
        with self._rate.attempt(source), closing_is_unavailability(SERVER):
            async with as_server_errors(SERVER):
                passed_back = await self._line().gateway.Enrol(passed, timeout=CALL_S)
        answer: enrolment_pb2.EnrolResponse = passed_back.response
        answer.server_address = self._address
        return answer

    async def RenewExpired(
        self, request: enrolment_pb2.RenewExpiredRequest, context: Context
    ) -> enrolment_pb2.RenewExpiredResponse:
        """Renew an expired certificate at the server."""
        self._rate.renewal(network_of(self._origin(context.peer())))
        return await _renew_expired(self._server, request)


class PassingRenewal(RenewalServiceServicer):
    """Forwards renewals with the participant's signature, since the server does not trust the gateway alone."""

    def __init__(self, server: HasEnrolmentStub, authenticator: Authenticator) -> None:
        self._server = server
        self._authenticator = authenticator

    async def Renew(self, request: enrolment_pb2.RenewRequest, context: Context) -> enrolment_pb2.RenewResponse:
        """Issue a new certificate for the calling participant."""
        await self._authenticator.participant(context)
        if not request.signature:
            raise InvalidRequestError(
                "renewal.signature",
                "this gateway can only forward a renewal that the old key has signed",
                "update the client",
            )
        passed = enrolment_pb2.RenewExpiredRequest(
            certificate_pem=certificate_of(context), csr_pem=request.csr_pem, signature=request.signature
        )
        answer = await _renew_expired(self._server, passed)
        return enrolment_pb2.RenewResponse(
            certificate_pem=answer.certificate_pem, ca_certificate_pem=answer.ca_certificate_pem
        )


async def _renew_expired(
    server: HasEnrolmentStub, request: enrolment_pb2.RenewExpiredRequest
) -> enrolment_pb2.RenewExpiredResponse:
    with closing_is_unavailability(SERVER):
        async with as_server_errors(SERVER):
            answer: enrolment_pb2.RenewExpiredResponse = await server.stub.RenewExpired(request, timeout=CALL_S)
    return answer
