import itertools
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from atoll.server.identity import (
    PARTICIPANT_LIFETIME_S,
    SERVER_LIFETIME_S,
    Authority,
    AuthorityError,
    CertificateRequest,
    NameFormatError,
    Peer,
    Role,
    ServerKeyPair,
)

PARTICIPANT = "pabcdefghijkl"
DAY_S = 86_400.0


def test_the_first_start_creates_and_the_next_loads(tmp_path: Path, now: float) -> None:
    first = Authority.open(tmp_path / "data" / "ca", now=now)
    second = Authority.open(tmp_path / "data" / "ca", now=now + DAY_S)
    assert first.certificate_pem == second.certificate_pem


def test_only_the_owner_may_read_keys(authority: Authority, tmp_path: Path, now: float) -> None:
    authority.server_key_pair(["localhost"], now=now)
    folder = tmp_path / "ca"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("authority.key", "server.pem"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert not list(folder.glob("*.tmp"))


def test_many_processes_that_start_at_once_make_one_authority(tmp_path: Path, now: float) -> None:
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(Authority.open(tmp_path / "ca", now=now).certificate_pem))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


def test_a_start_that_was_killed_between_key_and_certificate_goes_on(
    authority: Authority, tmp_path: Path, now: float
) -> None:
    (tmp_path / "ca" / "authority.crt").unlink()
    again = Authority.open(tmp_path / "ca", now=now)
    assert _public(again) == _public(authority)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(authority: Authority, tmp_path: Path, now: float, mode: int) -> None:
    del authority
    key = tmp_path / "ca" / "authority.key"
    key.chmod(mode)
    with pytest.raises(AuthorityError, match=f"mode {mode:04o}.*chmod 600") as refused:
        Authority.open(tmp_path / "ca", now=now)
    assert "0600" in refused.value.detail.remedy


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("authority.key", None, "is missing beside"),
        ("authority.key", b"", "is not a private key"),
        ("authority.key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is not a private key"),
        ("authority.crt", b"nonsense", "is not a certificate"),
    ],
)
def test_damage_is_named_with_a_remedy(
    authority: Authority, tmp_path: Path, now: float, file: str, content: bytes | None, says: str
) -> None:
    del authority
    path = tmp_path / "ca" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(AuthorityError, match=says) as refused:
        Authority.open(tmp_path / "ca", now=now)
    assert str(path) in str(refused.value)
    assert "backup" in refused.value.detail.remedy


def test_key_and_certificate_of_different_authorities_are_refused(
    authority: Authority, tmp_path: Path, now: float
) -> None:
    del authority
    other = Authority.open(tmp_path / "other", now=now)
    (tmp_path / "ca" / "authority.crt").write_bytes(other.certificate_pem)
    with pytest.raises(AuthorityError, match="does not belong to the key"):
        Authority.open(tmp_path / "ca", now=now)


def test_a_key_on_another_curve_is_refused(tmp_path: Path, now: float) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    path = tmp_path / "authority.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(AuthorityError, match="P-256"):
        Authority.open(tmp_path, now=now)


def test_a_place_that_cannot_be_a_directory_is_named(tmp_path: Path, now: float) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuthorityError, match="cannot be used") as refused:
        Authority.open(tmp_path / "file", now=now)
    assert str(tmp_path / "file") in str(refused.value)


def test_an_expired_authority_says_so(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match="expired on 20"):
        Authority.open(tmp_path / "ca", now=authority.not_after)


def test_a_participant_gets_the_servers_name_for_it_and_nothing_that_it_asked_for(
    authority: Authority, request_: CertificateRequest, now: float
) -> None:
    issued = authority.issue_participant(request_, PARTICIPANT, now=now)
    assert issued.peer == Peer.from_pem(issued.pem)
    assert (issued.peer.role, issued.peer.name) == (Role.PARTICIPANT, PARTICIPANT)
    assert issued.peer.not_after == now + PARTICIPANT_LIFETIME_S
    certificate = x509.load_pem_x509_certificate(issued.pem)
    assert certificate.public_key() == request_.public_key
    assert "operator" not in certificate.subject.rfc4514_string()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem))


def test_a_client_whose_clock_is_an_hour_slow_accepts_certificates(
    authority: Authority, request_: CertificateRequest, now: float
) -> None:
    pems = (
        authority.certificate_pem,
        authority.issue_participant(request_, PARTICIPANT, now=now).pem,
        authority.server_key_pair(["localhost"], now=now).certificate_pem,
    )
    for pem in pems:
        assert x509.load_pem_x509_certificate(pem).not_valid_before_utc.timestamp() < now - 3600


def test_no_certificate_outlives_the_authority(authority: Authority, request_: CertificateRequest) -> None:
    late = authority.not_after - 3600
    assert authority.issue_participant(request_, PARTICIPANT, now=late).peer.not_after == authority.not_after
    assert authority.server_key_pair(["localhost"], now=late).not_after == authority.not_after


def test_serial_numbers_differ(authority: Authority, request_: CertificateRequest, now: float) -> None:
    peers = [authority.issue_participant(request_, PARTICIPANT, now=now).peer for _ in range(5)]
    assert len({peer.serial for peer in peers}) == len({peer.fingerprint for peer in peers}) == 5


@pytest.mark.parametrize("name", ["", "p", "operator", "p../../../etc", "pABCDEFGHIJKL", PARTICIPANT + "m"])
def test_only_participant_ids_are_issued(
    authority: Authority, request_: CertificateRequest, now: float, name: str
) -> None:
    with pytest.raises(NameFormatError, match="participant id"):
        authority.issue_participant(request_, name, now=now)


def test_an_operator_is_told_apart_from_participants(authority: Authority, now: float) -> None:
    operator = authority.issue_operator("alice", now=now)
    assert (operator.issued.peer.role, operator.issued.peer.name) == (Role.OPERATOR, "alice")
    assert b"PRIVATE KEY" in operator.key_pem
    assert "PRIVATE" not in repr(operator)
    with pytest.raises(NameFormatError, match="operator name"):
        authority.issue_operator("Alice/Bob", now=now)


def test_the_server_certificate_is_kept_until_a_third_is_left(authority: Authority, now: float) -> None:
    names = ["fed.example.org", "localhost", "127.0.0.1", "::1"]
    first = authority.server_key_pair(names, now=now)
    assert first.not_after == now + SERVER_LIFETIME_S
    assert authority.server_key_pair(names, now=now + SERVER_LIFETIME_S * 0.6) == first
    renewed = authority.server_key_pair(names, now=now + SERVER_LIFETIME_S * 0.7)
    assert renewed != first
    assert authority.server_key_pair(names, now=now + SERVER_LIFETIME_S * 0.7) == renewed


def test_other_names_get_another_server_certificate(authority: Authority, now: float) -> None:
    first = authority.server_key_pair(["localhost"], now=now)
    assert authority.server_key_pair(["localhost", "10.0.0.1"], now=now) != first


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_server_certificate_is_replaced(
    authority: Authority, tmp_path: Path, now: float, content: bytes
) -> None:
    first = authority.server_key_pair(["localhost"], now=now)
    (tmp_path / "ca" / "server.pem").write_bytes(content)
    assert authority.server_key_pair(["localhost"], now=now) != first


def test_a_server_certificate_of_another_authority_is_replaced(
    authority: Authority, tmp_path: Path, now: float
) -> None:
    other = Authority.open(tmp_path / "other", now=now)
    theirs = other.server_key_pair(["localhost"], now=now)
    target = tmp_path / "ca" / "server.pem"
    target.write_bytes(theirs.key_pem + theirs.certificate_pem)
    target.chmod(0o600)
    assert authority.server_key_pair(["localhost"], now=now) != theirs


@pytest.mark.parametrize("names", [[], ["-x"], ["a..b"], ["host name"], ["host/path"], ["x" * 64], ["*"], [""]])
def test_bad_server_names_are_refused(authority: Authority, now: float, names: list[str]) -> None:
    with pytest.raises(AuthorityError, match="host name"):
        authority.server_key_pair(names, now=now)


@pytest.fixture
def today() -> float:
    """The current time: TLS uses the real clock."""
    return time.time()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_mutual_tls_works(
    tmp_path: Path, client_key: ec.EllipticCurvePrivateKey, csr_pem: bytes, today: float, name: str
) -> None:
    authority = Authority.open(tmp_path / "ca", now=today)
    issued = authority.issue_participant(CertificateRequest.parse(csr_pem), PARTICIPANT, now=today)
    pair = authority.server_key_pair(["localhost", "127.0.0.1"], now=today)
    server = _server_context(tmp_path, authority, pair)
    client = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    key_pem = client_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    client.load_cert_chain(_file(tmp_path / "client.pem", key_pem + issued.pem))
    seen = _handshake(client, server, name)
    assert seen is not None
    assert Peer.from_pem(ssl.DER_cert_to_PEM_cert(seen).encode()) == issued.peer


def test_a_server_is_not_trusted_under_another_name(tmp_path: Path, today: float) -> None:
    authority = Authority.open(tmp_path / "ca", now=today)
    server = _server_context(tmp_path, authority, authority.server_key_pair(["localhost"], now=today))
    client = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(client, server, "fed.example.org")


def test_a_client_of_another_authority_is_not_trusted(tmp_path: Path, today: float) -> None:
    authority = Authority.open(tmp_path / "ca", now=today)
    stranger = Authority.open(tmp_path / "other", now=today).issue_operator("alice", now=today)
    server = _server_context(tmp_path, authority, authority.server_key_pair(["localhost"], now=today))
    client = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    client.load_cert_chain(_file(tmp_path / "client.pem", stranger.key_pem + stranger.issued.pem))
    with pytest.raises(ssl.SSLError):
        _handshake(client, server, "localhost")


def _server_context(folder: Path, authority: Authority, pair: ServerKeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_file(folder / "server.pem", pair.key_pem + pair.certificate_pem))
    context.load_verify_locations(cadata=authority.certificate_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bytes | None:
    """The client's certificate as the server sees it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    far = server.wrap_bio(up, down, server_side=True)
    for side in itertools.islice(itertools.cycle((near, far)), 10):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return far.getpeercert(binary_form=True)


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _public(authority: Authority) -> object:
    return x509.load_pem_x509_certificate(authority.certificate_pem).public_key()
