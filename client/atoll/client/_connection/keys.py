"""The participant's key, and certificates, as PEM text.

``cryptography`` takes 10 MB, so these functions load it only when called.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from atoll.client.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes


def make_key() -> str:
    """A new P-256 private key, PEM (PKCS #8)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # see the module
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem.decode()


def make_csr(key_pem: str) -> bytes:
    """A PKCS #10 request for the key, PEM; its subject is empty, because the server assigns the name."""
    from cryptography import x509  # noqa: PLC0415  # see the module
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(private_key(key_pem), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def fingerprint(der: bytes) -> str:
    """The SHA-256 fingerprint of a certificate."""
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def public_key(certificate: x509.Certificate) -> CertificatePublicKeyTypes:
    """The key of a certificate.

    Raises:
        RefusedError: if it cannot be read.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # see the module

    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RefusedError(f"the key of the certificate cannot be read: {error}") from None


def private_key(key_pem: str) -> ec.EllipticCurvePrivateKey:
    """The stored key.

    Raises:
        UsageError: if it is not an elliptic-curve key.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # see the module
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"the stored key is a {type(key).__name__}; an elliptic-curve key is needed: enrol again")
    return key


def certificate_of(pem: str) -> x509.Certificate:
    """The certificate in PEM text.

    Raises:
        RefusedError: if it cannot be read.
    """
    from cryptography import x509  # noqa: PLC0415  # see the module

    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except (ValueError, x509.InvalidVersion) as error:
        raise RefusedError(f"the certificate cannot be read: {error}") from None
