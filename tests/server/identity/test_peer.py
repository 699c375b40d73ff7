import base64
import datetime
import hashlib
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.identity import Authority, Peer, PeerError, Role

_KEY = ec.generate_private_key(ec.SECP256R1())


def _certificate(*names: x509.GeneralName, client: bool = True) -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])
    start = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(_KEY.public_key())
        .serial_number(0xABC)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def _uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


@pytest.mark.parametrize(
    ("uri", "role", "name"),
    [
        ("atoll://participant/pabcdefghijkl", Role.PARTICIPANT, "pabcdefghijkl"),
        ("atoll://operator/alice", Role.OPERATOR, "alice"),
    ],
)
def test_reads_who_it_is(uri: str, role: Role, name: str) -> None:
    pem = _certificate(_uri(uri))
    peer = Peer.from_pem(pem)
    assert (peer.role, peer.name, peer.serial) == (role, name, "abc")
    assert peer.not_after == datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC).timestamp()
    assert peer.fingerprint == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()


@pytest.mark.parametrize(
    "uri",
    [
        "atoll://participant/",
        "atoll://participant/alice",
        "atoll://participant/pabcdefghijkl/x",
        "atoll://participant/pabcdefghijkl?x",
        "atoll://operator/",
        "atoll://operator/../x",
        "atoll://root/alice",
        "atoll:operator/alice",
        "https://operator/alice",
        "ATOLL://operator/alice",
    ],
)
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(PeerError, match="names"):
        Peer.from_pem(_certificate(_uri(uri)))


@pytest.mark.parametrize(
    "names",
    [
        (),
        (x509.DNSName("localhost"),),
        (_uri("atoll://operator/alice"), _uri("atoll://operator/bob")),
        (_uri("atoll://participant/pabcdefghijkl"), x509.DNSName("localhost")),
    ],
)
def test_exactly_one_uri_is_needed(names: tuple[x509.GeneralName, ...]) -> None:
    with pytest.raises(PeerError):
        Peer.from_pem(_certificate(*names))


def test_a_servers_certificate_is_no_peer(authority: Authority, now: float) -> None:
    with pytest.raises(PeerError):
        Peer.from_pem(authority.server_key_pair(["localhost"], now=now).certificate_pem)
    with pytest.raises(PeerError, match="not for clients"):
        Peer.from_pem(_certificate(_uri("atoll://operator/alice"), client=False))


def test_the_authority_itself_is_no_peer(authority: Authority) -> None:
    with pytest.raises(PeerError):
        Peer.from_pem(authority.certificate_pem)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        Peer.from_pem(data)


def test_a_certificate_of_a_version_that_there_is_not_is_refused() -> None:
    der = x509.load_pem_x509_certificate(_certificate(_uri("atoll://operator/admin"))).public_bytes(Encoding.DER)
    changed = base64.encodebytes(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x76", 1))
    with pytest.raises(PeerError, match="118 is not a valid X509 version"):
        Peer.from_pem(b"-----BEGIN CERTIFICATE-----\n" + changed + b"-----END CERTIFICATE-----\n")
