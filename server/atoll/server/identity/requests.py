"""Certificate requests (PKCS #10, RFC 2986): a newcomer's public key with proof of possession of the private key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from atoll.server.identity.certificates import key_to_pem, new_key
from atoll.server.identity.errors import UNREADABLE, CertificateRequestError

MAX_REQUEST_BYTES = 16_384


@dataclass(frozen=True)
class KeyWithRequest:
    """A new private key and a request signed by it, both PEM."""

    key_pem: bytes = field(repr=False)
    csr_pem: bytes

    @classmethod
    def make(cls) -> KeyWithRequest:
        """Make a new P-256 key; the request's subject is empty, because the server assigns the identity."""
        return cls.of(new_key())

    @classmethod
    def of(cls, key: ec.EllipticCurvePrivateKey) -> KeyWithRequest:
        """Make a request for a certificate of an existing key."""
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        return cls(key_to_pem(key), request.public_bytes(Encoding.PEM))


@dataclass(frozen=True)
class CertificateRequest:
    """A request with a valid signature: the caller holds the private key.

    Names in the request are ignored, since the server assigns the identity. ``key`` is the SHA-256 of the
    public key (DER SubjectPublicKeyInfo) in hex.
    """

    public_key: ec.EllipticCurvePublicKey
    key: str

    @classmethod
    def parse(cls, pem: bytes) -> CertificateRequest:
        """Read and check a PEM request.

        Raises:
            CertificateRequestError: if it is too long, unreadable, not signed by its own key, or the key is not P-256.
        """
        if len(pem) > MAX_REQUEST_BYTES:
            raise CertificateRequestError(f"certificate request of {len(pem)} bytes, at most {MAX_REQUEST_BYTES}")
        try:
            request = x509.load_pem_x509_csr(pem)
            public_key = request.public_key()
            proved = request.is_signature_valid
        except UNREADABLE as error:
            raise CertificateRequestError(f"the certificate request cannot be read: {error}") from None
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
            raise CertificateRequestError("the certificate request's key is not an elliptic-curve key on P-256")
        if not proved:
            raise CertificateRequestError("the certificate request is not signed by the key that it names")
        encoded = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(public_key, hashlib.sha256(encoded).hexdigest())
