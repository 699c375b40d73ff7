"""The identity in a peer's certificate.

An identity is one URI among the certificate's subject alternative names: ``atoll://participant/<id>``,
``atoll://aggregator/<id>``, ``atoll://operator/<name>`` or, between servers, ``atoll://server/<id>`` (as in SPIFFE:
exactly one URI, and nothing else is read). TLS has already verified the chain and the dates of a certificate that is
read here; the store checks whether it has been revoked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from atoll.server.identity.errors import UNREADABLE, NameFormatError, PeerError
from atoll.server.identity.names import ParticipantKind, check_operator, check_participant_id, check_server_id
from atoll.server.identity.validity import issued_at_of

_SCHEME = "atoll://"


class Role(StrEnum):
    """The role of a certificate's holder."""

    PARTICIPANT = "participant"
    OPERATOR = "operator"
    AGGREGATOR = "aggregator"
    SERVER = "server"

    @classmethod
    def of_kind(cls, kind: ParticipantKind) -> Role:
        """The role in the certificates of an enrolled party."""
        return cls.AGGREGATOR if kind is ParticipantKind.AGGREGATOR else cls.PARTICIPANT


_CHECKS = {Role.OPERATOR: check_operator, Role.SERVER: check_server_id}


@dataclass(frozen=True)
class Peer:
    """The holder of a certificate.

    ``name`` is the id of a participant, aggregator or server, or an operator's name. ``fingerprint`` is the SHA-256 of
    the certificate's DER in hex, ``serial`` is hex, and ``not_before`` and ``not_after`` are epoch seconds UTC.
    """

    role: Role
    name: str
    fingerprint: str
    not_before: float
    not_after: float
    serial: str

    @property
    def issued_at(self) -> float:
        """Time of issue in epoch seconds UTC, to the second, of a certificate by this federation's authority."""
        return issued_at_of(self.not_before, self.not_after)

    @classmethod
    def from_pem(cls, pem: bytes) -> Peer:
        """The peer that a PEM certificate names.

        Raises:
            PeerError: if it is not a certificate for clients that names exactly one participant or operator.
        """
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            role, name = _identity(certificate.extensions)
            return cls(
                role=role,
                name=name,
                fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
                not_before=certificate.not_valid_before_utc.timestamp(),
                not_after=certificate.not_valid_after_utc.timestamp(),
                serial=format(certificate.serial_number, "x"),
            )
        except UNREADABLE as error:
            raise PeerError(f"the peer's certificate cannot be read: {error}") from None


def fingerprint_of(pem: bytes) -> str:
    """The fingerprint, as in ``Peer``, of a PEM certificate that has already been checked."""
    return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()


def identity_uri(role: Role, name: str) -> str:
    """The URI that names a peer in its certificate."""
    return f"{_SCHEME}{role}/{name}"


def _identity(extensions: x509.Extensions) -> tuple[Role, str]:
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound as error:
        raise PeerError(f"the peer's certificate names no participant or operator: {error}") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1 or len(list(names)) != 1:
        raise PeerError(f"the peer's certificate has {len(list(names))} alternative names, expected one URI")
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise PeerError(f"the certificate of {uris[0][:100]!r} is not for clients")
    return _parse_uri(uris[0])


def _parse_uri(uri: str) -> tuple[Role, str]:
    role_text, _, name = uri.removeprefix(_SCHEME).partition("/")
    if not uri.startswith(_SCHEME) or role_text not in tuple(Role):
        raise PeerError(f"the peer's certificate names {uri[:100]!r}: expected {_SCHEME} and one of {', '.join(Role)}")
    role = Role(role_text)
    try:
        return role, _CHECKS.get(role, check_participant_id)(name)
    except NameFormatError as error:
        raise PeerError(f"the peer's certificate names {uri[:100]!r}: {error}") from None
