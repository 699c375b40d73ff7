import pytest

from atoll.text.connections import connection_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ipv4:1.2.3.4:1: Tls handshake failed: CERTIFICATE_VERIFY_FAILED: unable to get issuer", "another federation"),
        ("Tls handshake failed: certificate signature failure", "another federation"),
        ("Tls handshake failed: WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("Method not found!", "give the main port (by default 7400;"),
        ("Connection refused", "Connection refused"),
    ],
)
def test_known_mistakes_are_explained_in_plain_words(text: str, words: str) -> None:
    assert words in connection_words(text)
