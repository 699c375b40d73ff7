import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.errors import JoinTokenError
from atoll.wire.join_token import JoinToken


def _certificate(*, ca: bool) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


CA_PEM = _certificate(ca=True)
TOKEN = JoinToken("fed.example.org:7401", CA_PEM, "tabcdefghijkl", "s3cret-s3cret-s3cret")
TEXT = TOKEN.encode()
_WORD = st.text(min_size=1, max_size=60)


@given(host=_WORD, port=st.integers(1, 65535), token_id=_WORD, secret=_WORD)
def test_round_trip(host: str, port: int, token_id: str, secret: str) -> None:
    token = JoinToken(f"{host}:{port}", CA_PEM, token_id, secret)
    assert JoinToken.decode(token.encode()) == token


def test_is_one_short_line_of_plain_characters() -> None:
    assert TEXT.startswith("atoll-join-1.")
    assert len(TEXT) < 1000
    assert set(TEXT) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_line_breaks_of_a_terminal_do_not_matter() -> None:
    wrapped = "\n  ".join(TEXT[at : at + 79] for at in range(0, len(TEXT), 79))
    assert JoinToken.decode(f" {wrapped}\n") == TOKEN


def test_every_truncation_is_refused() -> None:
    for length in range(len(TEXT)):
        with pytest.raises(JoinTokenError):
            JoinToken.decode(TEXT[:length])
    with pytest.raises(JoinTokenError, match="cut short"):
        JoinToken.decode(TEXT[:-5])


def test_every_changed_character_is_refused() -> None:
    for at in range(len(TEXT)):
        other = "A" if TEXT[at] != "A" else "B"
        with pytest.raises(JoinTokenError):
            JoinToken.decode(TEXT[:at] + other + TEXT[at + 1 :])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a join token"),
        ("hello world", "not a join token"),
        (TEXT.replace("atoll-join-1", "atoll-join-2"), "upgrade"),
        (TEXT[:40] + "x" + TEXT[40:], "checksum does not match"),
        (TEXT + ".x", "checksum does not match"),
        (TEXT.replace("e", "é"), "no token has"),
        ("x" * 20_000, "too many"),
    ],
)
def test_errors_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(JoinTokenError, match=says):
        JoinToken.decode(text)


@given(st.text())
def test_random_text_is_never_worse_than_refused(text: str) -> None:
    with pytest.raises(JoinTokenError):
        JoinToken.decode(text)


def test_the_secret_is_not_shown() -> None:
    assert TOKEN.secret not in repr(TOKEN)
    assert TOKEN.secret not in str(TOKEN)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:²"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(JoinTokenError, match="host:port"):
        JoinToken(address, CA_PEM, "t", "s")


def test_the_certificate_must_be_an_authority() -> None:
    with pytest.raises(JoinTokenError, match="not a certificate authority"):
        JoinToken("h:1", _certificate(ca=False), "t", "s")
    with pytest.raises(JoinTokenError, match="not PEM"):
        JoinToken("h:1", b"nonsense", "t", "s")


@pytest.mark.parametrize(("token_id", "secret"), [("", "s"), ("t", "")])
def test_id_and_secret_are_needed(token_id: str, secret: str) -> None:
    with pytest.raises(JoinTokenError, match="id and a secret"):
        JoinToken("h:1", CA_PEM, token_id, secret)
