"""Builds this federation's certificates (RFC 5280): the authority's, servers' and clients'.

All keys are on P-256, since the TLS library inside gRPC does not accept Ed25519 certificates by default.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.server.identity.errors import AuthorityError
from atoll.server.identity.host_name import address_of, is_host_name
from atoll.server.identity.peer import Role, identity_uri
from atoll.server.identity.validity import not_before_of


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as unencrypted PKCS #8 PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def authority_certificate(key: ec.EllipticCurvePrivateKey, *, now: float, lifetime_s: float) -> x509.Certificate:
    """The authority's self-signed certificate; its name holds the start of its key's identifier."""
    public_key = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
    name = _name(f"Atoll authority {identifier.digest.hex()[:16]}")
    usage = _key_usage(certificate_sign=True)
    return (
        _builder(name, name, public_key, now=now, not_after=now + lifetime_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def client_certificate(
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    public_key: ec.EllipticCurvePublicKey,
    *,
    role: Role,
    name: str,
    now: float,
    not_after: float,
) -> x509.Certificate:
    """A certificate for one participant or operator: one URI names it."""
    builder = _builder(_name(name), issuer.subject, public_key, now=now, not_after=not_after)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity_uri(role, name))])
    return _sign_leaf(builder, issuer, issuer_key, names, ExtendedKeyUsageOID.CLIENT_AUTH)


def server_certificate(
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    public_key: ec.EllipticCurvePublicKey,
    *,
    names: Sequence[str],
    now: float,
    not_after: float,
) -> x509.Certificate:
    """A certificate for a server reached under ``names`` (host names and IP addresses).

    Raises:
        AuthorityError: for no names, or a name that is neither.
    """
    builder = _builder(_name("Atoll server"), issuer.subject, public_key, now=now, not_after=not_after)
    return _sign_leaf(builder, issuer, issuer_key, server_names(names), ExtendedKeyUsageOID.SERVER_AUTH)


def server_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    """Host names and IP addresses as a certificate's alternative names, in order and without duplicates.

    Raises:
        AuthorityError: for no names, or a name that is neither.
    """
    if not names:
        raise AuthorityError("a server certificate needs at least one host name or IP address that clients connect to")
    return x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys(names)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(address_of(name))
    except ValueError:
        if not is_host_name(name):
            raise AuthorityError(f"server name {name[:100]!r} is neither a host name nor an IP address") from None
        return x509.DNSName(name)


def _sign_leaf(
    builder: x509.CertificateBuilder,
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: x509.SubjectAlternativeName,
    usage: x509.ObjectIdentifier,
) -> x509.Certificate:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificate_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(authority, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    *,
    now: float,
    not_after: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_utc(not_before_of(now, not_after)))
        .not_valid_after(_utc(not_after))
    )


def _key_usage(*, certificate_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificate_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificate_sign,
        crl_sign=certificate_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(at), datetime.UTC)
