import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.identity import CertificateRequest, CertificateRequestError


def test_reads_the_key(csr_pem: bytes, client_key: ec.EllipticCurvePrivateKey) -> None:
    request = CertificateRequest.parse(csr_pem)
    assert request.public_key == client_key.public_key()
    assert len(request.key) == 64
    assert CertificateRequest.parse(csr_pem) == request


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
    ],
)
def test_other_keys_are_refused(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    with pytest.raises(CertificateRequestError, match="P-256"):
        CertificateRequest.parse(builder.sign(key, algorithm).public_bytes(Encoding.PEM))


def test_a_request_that_its_key_did_not_sign_is_refused(csr_pem: bytes) -> None:
    der = bytearray(x509.load_pem_x509_csr(csr_pem).public_bytes(Encoding.DER))
    der[-1] ^= 1  # the end of the signature
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateRequestError, match="not signed by the key"):
        CertificateRequest.parse(forged)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CertificateRequestError, match="cannot be read"):
        CertificateRequest.parse(data)


def test_a_request_of_a_version_that_there_is_not_is_refused(csr_pem: bytes) -> None:
    der = x509.load_pem_x509_csr(csr_pem).public_bytes(Encoding.DER)
    changed = base64.encodebytes(der.replace(b"\x02\x01\x00", b"\x02\x01\x02", 1))
    with pytest.raises(CertificateRequestError, match="2 is not a valid CSR version"):
        CertificateRequest.parse(
            b"-----BEGIN CERTIFICATE REQUEST-----\n" + changed + b"-----END CERTIFICATE REQUEST-----\n"
        )


def test_a_very_long_request_is_refused_unread() -> None:
    with pytest.raises(CertificateRequestError, match="20000 bytes, at most 16384"):
        CertificateRequest.parse(b"x" * 20_000)
