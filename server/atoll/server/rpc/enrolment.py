"""EnrolmentService and RenewalService: from a join token to a certificate, and from one certificate to the next."""

from __future__ import annotations

from collections.abc import Callable

from atoll.server.access.issuing import CertificateIssuer
from atoll.server.identity import ParticipantKind
from atoll.server.rpc.authentication import Authenticator, Context, certificate_of
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.peers import network_of
from atoll.wire.v1 import enrolment_pb2
from atoll.wire.v1.enrolment_pb2_grpc import EnrolmentServiceServicer, RenewalServiceServicer

KINDS = {
    ParticipantKind.EDGE: enrolment_pb2.PARTICIPANT_KIND_EDGE,
    ParticipantKind.SILO: enrolment_pb2.PARTICIPANT_KIND_SILO,
    ParticipantKind.AGGREGATOR: enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR,
}


class Redeemer:
    """Redeems join tokens, within the limits on attempts from an address.

    Args:
        certificates: issues certificates.
        server_address: address of the main port, which participants connect to.
        rate: counts attempts.
    """

    def __init__(self, certificates: CertificateIssuer, server_address: str, rate: EnrolmentRate) -> None:
        self._certificates = certificates
        self._server_address = server_address
        self.rate = rate

    async def redeem(
        self, request: enrolment_pb2.EnrolRequest, source: str, aggregator: str = ""
    ) -> enrolment_pb2.EnrolResponse:
        """Redeem the join token of a request that came from ``source``, through ``aggregator`` if one is named."""
        with self.rate.attempt(source, aggregator):
            participant, pem = await self._certificates.enrol(
                request.token_id, request.secret, request.csr_pem, aggregator=request.aggregator
            )
        return enrolment_pb2.EnrolResponse(
            participant=participant.id,
            organisation=participant.organisation,
            kind=KINDS[participant.kind],
            certificate_pem=pem,
            ca_certificate_pem=self._certificates.ca_certificate_pem,
            server_address=self._server_address,
        )


class EnrolmentService(EnrolmentServiceServicer):
    """Redeems join tokens, and renews expired certificates.

    Args:
        certificates: issues certificates.
        redeemer: redeems join tokens.
        origin: returns the peer that a call originates from, given its immediate peer.
    """

    def __init__(self, certificates: CertificateIssuer, redeemer: Redeemer, origin: Callable[[str], str] = str) -> None:
        self._certificates = certificates
        self._redeemer = redeemer
        self._origin = origin

    async def Enrol(
        self,
        request: enrolment_pb2.EnrolRequest,
        context: Context,
    ) -> enrolment_pb2.EnrolResponse:
        """Redeem a join token for a certificate of the request's key."""
        return await self._redeemer.redeem(request, network_of(self._origin(context.peer())))

    async def RenewExpired(
        self, request: enrolment_pb2.RenewExpiredRequest, context: Context
    ) -> enrolment_pb2.RenewExpiredResponse:
        """Replace an expired certificate, which TLS on the main port no longer accepts."""
        self._redeemer.rate.renewal(network_of(self._origin(context.peer())))
        pem = await self._certificates.renew_expired(request.certificate_pem, request.csr_pem, request.signature)
        return enrolment_pb2.RenewExpiredResponse(
            certificate_pem=pem, ca_certificate_pem=self._certificates.ca_certificate_pem
        )


class RenewalService(RenewalServiceServicer):
    """Renews the certificate that the connection was made with."""

    def __init__(self, certificates: CertificateIssuer, authenticator: Authenticator) -> None:
        self._certificates = certificates
        self._authenticator = authenticator

    async def Renew(self, request: enrolment_pb2.RenewRequest, context: Context) -> enrolment_pb2.RenewResponse:
        """Issue a new certificate to the same participant or aggregator."""
        await self._authenticator.enrolled(context)
        pem = await self._certificates.renew(certificate_of(context), request.csr_pem)
        return enrolment_pb2.RenewResponse(
            certificate_pem=pem, ca_certificate_pem=self._certificates.ca_certificate_pem
        )
