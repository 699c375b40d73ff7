"""A certificate authority and a TLS federation for the client's tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import grpc
import numpy.typing as npt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from atoll.wire.join_token import JoinToken
from atoll.wire.status import ErrorDetail, Fault, Recovery
from atoll.wire.v1 import enrolment_pb2, enrolment_pb2_grpc
from atoll.wire.v1 import participation_pb2 as part
from tests.client.harness import Federation, refuse

if TYPE_CHECKING:
    from tests.client.harness import Context


class Authority:
    """Signs certificates; keeps the key in memory."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("test authority", self.key.public_key(), 3600.0, ca=True)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server_pair(self) -> tuple[bytes, bytes]:
        """Key and certificate of a server on loopback, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem, pem_of(self._sign("server", key.public_key(), 3600.0))

    def client_certificate(self, csr_pem: bytes, name: str, lifetime_s: float) -> bytes:
        """A certificate for the key of a request, PEM."""
        csr = x509.load_pem_x509_csr(csr_pem)
        assert csr.is_signature_valid
        return pem_of(self._sign(name, csr.public_key(), lifetime_s))

    def _sign(self, name: str, key: Any, lifetime_s: float, *, ca: bool = False) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=1))
            .not_valid_after(now + timedelta(seconds=lifetime_s))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        return builder.sign(self.key, hashes.SHA256())


class SecureFederation(
    Federation, enrolment_pb2_grpc.RenewalServiceServicer, enrolment_pb2_grpc.EnrolmentServiceServicer
):
    """A federation with mutual TLS, and enrolment on a separate port."""

    def __init__(self, model: Mapping[str, npt.NDArray[Any]], lifetime_s: float = 600.0) -> None:
        super().__init__(model)
        self.authority = Authority()
        self.lifetime_s = lifetime_s
        self.remaining_s = lifetime_s
        self.enrolment_port = self.port + 1
        self.spent: dict[str, bytes] = {}
        self.lose_enrolments = 0
        self.put_off_enrolments = 0
        self.put_off_s: float | None = None
        self.reject_enrolments = 0
        self.renewals = 0
        self.recoveries = 0
        self.grace = False
        self.refuse_renewals = 0
        self.other_key = False
        self.peers: list[str] = []
        self._enrolment: grpc.aio.Server | None = None

    async def start(self) -> None:
        await super().start()
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(self, server)
        pair = grpc.ssl_server_credentials([self.authority.server_pair()])
        self.enrolment_port = server.add_secure_port(f"127.0.0.1:{self.enrolment_port}", pair)
        await server.start()
        self._enrolment = server

    async def kill(self) -> None:
        await super().kill()
        if self._enrolment is not None:
            await self._enrolment.stop(None)
            self._enrolment = None

    def add_services(self, server: grpc.aio.Server) -> None:
        enrolment_pb2_grpc.add_RenewalServiceServicer_to_server(self, server)

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        credentials = grpc.ssl_server_credentials(
            [self.authority.server_pair()], root_certificates=self.authority.pem, require_client_auth=True
        )
        return server.add_secure_port(address, credentials)

    def token(self, number: int = 1) -> str:
        return JoinToken(f"127.0.0.1:{self.enrolment_port}", self.authority.pem, f"t{number}", "s3cret").encode()

    def welcome(self) -> part.Welcome:
        message = super().welcome()
        message.certificate_remaining_s = self.remaining_s
        return message

    async def Enrol(  # noqa: N802
        self, request: enrolment_pb2.EnrolRequest, context: Context
    ) -> enrolment_pb2.EnrolResponse:
        key = x509.load_pem_x509_csr(request.csr_pem).public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip
        if request.secret != "s3cret" or self.spent.setdefault(request.token_id, key) != key:
            message = "this join token was used before"
            detail = ErrorDetail("token.used", Fault.CALLER, message, "ask for a new one", recovery=Recovery.ENROL)
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, detail)
        await self._hinder(context)
        if self.lose_enrolments:
            self.lose_enrolments -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return enrolment_pb2.EnrolResponse(
            participant="p1",
            organisation="clinic-a",
            kind=enrolment_pb2.PARTICIPANT_KIND_EDGE,
            certificate_pem=self._certify(request.csr_pem),
            ca_certificate_pem=self.authority.pem,
            server_address=self.address,
        )

    async def _hinder(self, context: Context) -> None:
        if self.reject_enrolments:
            self.reject_enrolments -= 1
            detail = ErrorDetail("identity.request", Fault.CALLER, "this is not a request")
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, detail)
        if self.put_off_enrolments:
            self.put_off_enrolments -= 1
            if self.put_off_s is None:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
            detail = ErrorDetail("enrolment.rate", Fault.CALLER, "too many", retry_after_s=self.put_off_s)
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, detail)

    async def Renew(  # noqa: N802
        self, request: enrolment_pb2.RenewRequest, context: Context
    ) -> enrolment_pb2.RenewResponse:
        self.peers.append(common_name(context))
        if self.refuse_renewals:
            self.refuse_renewals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.renewals += 1
        return enrolment_pb2.RenewResponse(
            certificate_pem=self._certify(request.csr_pem), ca_certificate_pem=self.authority.pem
        )

    async def RenewExpired(  # noqa: N802
        self, request: enrolment_pb2.RenewExpiredRequest, context: Context
    ) -> enrolment_pb2.RenewExpiredResponse:
        old = x509.load_pem_x509_certificate(request.certificate_pem)
        key = old.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(request.signature, b"atoll renewal 1\n" + request.csr_pem, ec.ECDSA(hashes.SHA256()))
        self.recoveries += 1
        if not self.grace:
            detail = ErrorDetail("certificate.expired", Fault.CALLER, "it expired long ago", "enrol again")
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, detail)
        return enrolment_pb2.RenewExpiredResponse(
            certificate_pem=self._certify(request.csr_pem), ca_certificate_pem=self.authority.pem
        )

    def _certify(self, csr_pem: bytes) -> bytes:
        if self.other_key:
            return self.authority.server_pair()[1]
        return self.authority.client_certificate(csr_pem, f"p1 v{self.renewals}", self.lifetime_s)


def common_name(context: Context) -> str:
    """Return the participant that the caller's certificate names."""
    (name,) = context.auth_context()["x509_common_name"]
    return name.decode()


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
