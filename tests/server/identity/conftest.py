from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from atoll.server.identity import Authority, CertificateRequest

NOW = 1_800_000_000.0


def request_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate request that asks for names which it must not get."""
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("atoll://operator/root")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


@pytest.fixture
def now() -> float:
    return NOW


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.open(tmp_path / "ca", now=NOW)


@pytest.fixture
def client_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def csr_pem(client_key: ec.EllipticCurvePrivateKey) -> bytes:
    return request_pem(client_key)


@pytest.fixture
def request_(csr_pem: bytes) -> CertificateRequest:
    return CertificateRequest.parse(csr_pem)
