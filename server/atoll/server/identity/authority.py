"""The embedded certificate authority of one federation.

Its directory holds ``authority.key`` (mode 0600: its holder can impersonate every participant), ``authority.crt``
(public) and ``server.pem`` (mode 0600: the server's own key and certificate). Time is an argument everywhere:
``now`` is epoch seconds UTC.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from atoll.server.identity import certificates
from atoll.server.identity.errors import UNREADABLE, AuthorityError, PeerError
from atoll.server.identity.files import (
    PRIVATE_DIRECTORY_MODE,
    PRIVATE_MODE,
    PUBLIC_MODE,
    read_private,
    write_atomic,
)
from atoll.server.identity.names import check_operator, check_participant_id, check_server_id
from atoll.server.identity.peer import Peer, Role
from atoll.server.identity.requests import CertificateRequest

AUTHORITY_LIFETIME_S = 3650 * 86_400.0
SERVER_LIFETIME_S = 90 * 86_400.0
PARTICIPANT_LIFETIME_S = 86_400.0
OPERATOR_LIFETIME_S = 90 * 86_400.0
AUTHORITY_FILES = ("authority.key", "authority.crt")
"""The files that define the authority; the others can be recreated from them."""
_RENEW_AT = 1 / 3  # a server certificate is renewed when less than this share of its lifetime remains
_KEY_FILE, _CERTIFICATE_FILE = AUTHORITY_FILES
_SERVER_FILE, _LOCK_FILE = "server.pem", ".lock"
_RIGHTS = "give the account that runs the server sole ownership of it: mode 0700 for the directory, 0600 for keys"
_RESTORE = "restore the directory from a backup, or start with an empty one (everyone must then enrol again)"


@dataclass(frozen=True)
class IssuedCertificate:
    """A new client certificate: its fields and its PEM."""

    peer: Peer
    pem: bytes


@dataclass(frozen=True)
class ServerKeyPair:
    """The server's certificate and private key, both PEM; ``not_after`` in epoch seconds UTC."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    not_after: float


@dataclass(frozen=True)
class OperatorIdentity:
    """A new client certificate and private key (PEM), of an operator or of a server that calls other servers."""

    issued: IssuedCertificate
    key_pem: bytes = field(repr=False)


class Authority:
    """Issues the certificates of one federation. Thread-safe; opened by ``Authority.open``."""

    def __init__(self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._directory = directory
        self._key = key
        self._certificate = certificate

    @classmethod
    def open(cls, directory: Path, *, now: float) -> Authority:
        """Load the authority kept in ``directory``, or create it there on first start.

        Raises:
            AuthorityError: if the directory cannot be used, other users may read the key, a file is missing or damaged,
                or the authority's certificate has expired.
        """
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY_MODE, parents=True, exist_ok=True)
            with _lock(directory):
                key = _load_or_create_key(directory)
                certificate = _load_or_create_certificate(directory, key, now)
        except OSError as error:
            raise AuthorityError(
                f"the certificate authority in {directory} cannot be used: {error}", _RIGHTS
            ) from error
        not_after = certificate.not_valid_after_utc
        if now >= not_after.timestamp():
            raise AuthorityError(
                f"the certificate authority in {directory} expired on {not_after:%Y-%m-%d}",
                "move that directory away to start a new authority; everyone must then enrol again",
            )
        return cls(directory, key, certificate)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's own certificate, which clients trust."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def not_after(self) -> float:
        """When the authority's certificate expires, epoch seconds UTC."""
        return self._certificate.not_valid_after_utc.timestamp()

    def server_key_pair(self, names: Sequence[str], *, now: float) -> ServerKeyPair:
        """The server's own certificate for these host names and IP addresses.

        The one on disk is used while it has the same names and a third of its lifetime left; otherwise a new one
        replaces it. Call this repeatedly (for example daily) and serve the result.

        Raises:
            AuthorityError: for an invalid name, or if the file cannot be read or written.
        """
        wanted = certificates.server_names(names)
        path = self._directory / _SERVER_FILE
        try:
            with _lock(self._directory):
                kept = self._kept_server_pair(path, wanted, now)
                if kept is not None:
                    return kept
                pair = self._new_server_pair(names, now)
                write_atomic(path, pair.key_pem + pair.certificate_pem, mode=PRIVATE_MODE)
                return pair
        except OSError as error:
            raise AuthorityError(f"the server certificate {path} cannot be used: {error}", _RIGHTS) from error

    def issue_participant(
        self,
        request: CertificateRequest,
        participant: str,
        *,
        now: float,
        lifetime_s: float = PARTICIPANT_LIFETIME_S,
        role: Role = Role.PARTICIPANT,
    ) -> IssuedCertificate:
        """Issue a certificate for the key in the request of the participant or aggregator with this id.

        Raises:
            NameFormatError: if the id is not a participant id.
        """
        check_participant_id(participant)
        return self._issue(request.public_key, role, participant, now, lifetime_s)

    def issue_server(self, request: CertificateRequest, names: Sequence[str], *, now: float) -> bytes:
        """Issue a certificate (PEM) for the key in the request of a server that is reached under ``names``.

        Raises:
            AuthorityError: for no names, or one that is neither a host name nor an IP address.
        """
        not_after = min(now + SERVER_LIFETIME_S, self.not_after)
        certificate = certificates.server_certificate(
            self._certificate, self._key, request.public_key, names=names, now=now, not_after=not_after
        )
        return certificate.public_bytes(Encoding.PEM)

    def issue_operator(self, name: str, *, now: float, lifetime_s: float = OPERATOR_LIFETIME_S) -> OperatorIdentity:
        """Issue a certificate for an operator with a new key, which the server does not keep.

        Raises:
            NameFormatError: for an invalid name.
        """
        check_operator(name)
        key = certificates.new_key()
        issued = self._issue(key.public_key(), Role.OPERATOR, name, now, lifetime_s)
        return OperatorIdentity(issued, certificates.key_to_pem(key))

    def identify_server(self, name: str, *, now: float, lifetime_s: float) -> OperatorIdentity:
        """Issue a certificate with a new key, with which one server of the federation calls another.

        Raises:
            NameFormatError: if the id is not a server id.
        """
        check_server_id(name)
        key = certificates.new_key()
        issued = self._issue(key.public_key(), Role.SERVER, name, now, lifetime_s)
        return OperatorIdentity(issued, certificates.key_to_pem(key))

    def require_issued(self, certificate_pem: bytes) -> Peer:
        """The peer in a certificate, which this authority must have signed.

        Raises:
            PeerError: if it has not.
        """
        peer = Peer.from_pem(certificate_pem)
        try:
            x509.load_pem_x509_certificate(certificate_pem).verify_directly_issued_by(self._certificate)
        except (*UNREADABLE, TypeError, InvalidSignature):
            raise PeerError(f"the certificate of {peer.name} is not of this federation") from None
        return peer

    def verify_proof(self, certificate_pem: bytes, message: bytes, signature: bytes) -> Peer:
        """The peer whose key signed ``message``, given its certificate by this authority, even an expired one.

        Raises:
            PeerError: if the authority did not issue the certificate, or its key did not sign the message.
        """
        peer = Peer.from_pem(certificate_pem)
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        try:
            certificate.verify_directly_issued_by(self._certificate)
            key = certificate.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise PeerError(f"the certificate of {peer.name} has no elliptic-curve key")
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except (*UNREADABLE, TypeError, InvalidSignature):
            raise PeerError(f"the key of {peer.name}'s certificate is not proved by this signature") from None
        return peer

    def certify_operator(
        self, request: CertificateRequest, name: str, *, now: float, lifetime_s: float = OPERATOR_LIFETIME_S
    ) -> IssuedCertificate:
        """Issue a certificate for the key in an operator's request.

        Raises:
            NameFormatError: for an invalid name.
        """
        check_operator(name)
        return self._issue(request.public_key, Role.OPERATOR, name, now, lifetime_s)

    def _issue(
        self, public_key: ec.EllipticCurvePublicKey, role: Role, name: str, now: float, lifetime_s: float
    ) -> IssuedCertificate:
        certificate = certificates.client_certificate(
            self._certificate,
            self._key,
            public_key,
            role=role,
            name=name,
            now=now,
            not_after=min(now + lifetime_s, self.not_after),
        )
        pem = certificate.public_bytes(Encoding.PEM)
        return IssuedCertificate(Peer.from_pem(pem), pem)

    def _new_server_pair(self, names: Sequence[str], now: float) -> ServerKeyPair:
        key = certificates.new_key()
        not_after = min(now + SERVER_LIFETIME_S, self.not_after)
        certificate = certificates.server_certificate(
            self._certificate, self._key, key.public_key(), names=names, now=now, not_after=not_after
        )
        return ServerKeyPair(certificate.public_bytes(Encoding.PEM), certificates.key_to_pem(key), not_after)

    def _kept_server_pair(self, path: Path, wanted: x509.SubjectAlternativeName, now: float) -> ServerKeyPair | None:
        if not path.exists():
            return None
        data = read_private(path)
        try:
            certificate = x509.load_pem_x509_certificate(data)
            key = load_pem_private_key(data, password=None)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            certificate.verify_directly_issued_by(self._certificate)
        except (*UNREADABLE, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return None  # damaged, or from another authority: it is replaced
        remaining_s = certificate.not_valid_after_utc.timestamp() - now
        fresh = remaining_s > SERVER_LIFETIME_S * _RENEW_AT and certificate.not_valid_before_utc.timestamp() <= now
        if names != wanted or not fresh or key.public_key() != certificate.public_key():
            return None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            return None
        pem = certificate.public_bytes(Encoding.PEM)
        return ServerKeyPair(pem, certificates.key_to_pem(key), certificate.not_valid_after_utc.timestamp())


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Let one process at a time create or renew; the lock ends with the process."""
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _load_or_create_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    path = directory / _KEY_FILE
    if not path.exists():
        if (directory / _CERTIFICATE_FILE).exists():
            raise AuthorityError(f"{path} is missing beside the authority's certificate", _RESTORE)
        key = certificates.new_key()
        write_atomic(path, certificates.key_to_pem(key), mode=PRIVATE_MODE)
        return key
    try:
        loaded = load_pem_private_key(read_private(path), password=None)
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{path} is not a private key: {error}", _RESTORE) from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or not isinstance(loaded.curve, ec.SECP256R1):
        raise AuthorityError(f"{path} is not a key on P-256", _RESTORE)
    return loaded


def _load_or_create_certificate(directory: Path, key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    path = directory / _CERTIFICATE_FILE
    if not path.exists():
        certificate = certificates.authority_certificate(key, now=now, lifetime_s=AUTHORITY_LIFETIME_S)
        write_atomic(path, certificate.public_bytes(Encoding.PEM), mode=PUBLIC_MODE)
        return certificate
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except UNREADABLE as error:
        raise AuthorityError(f"{path} is not a certificate: {error}", _RESTORE) from None
    if certificate.public_key() != key.public_key():
        raise AuthorityError(f"{path} does not belong to the key beside it", _RESTORE)
    return certificate
