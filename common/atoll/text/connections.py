"""Translate gRPC's errors about a wrong port or a wrong server into plain words."""

from __future__ import annotations

MAIN_PORT = "by default 7400; the enrolment port is one above it, the metrics port three above"
_PLAINTEXT = "WRONG_VERSION_NUMBER"
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "certificate signature failure")
"""Parts of gRPC's messages when the peer's certificate is not from the expected authority.

The second one means an authority with the same name and another key."""
_UNKNOWN_METHOD = "Method not found"


def is_untrusted(text: str) -> bool:
    """Whether the server's certificate is from an authority that the caller does not trust."""
    return any(words in text for words in _UNTRUSTED)


def is_plaintext(text: str) -> bool:
    """Whether the port does not speak TLS."""
    return _PLAINTEXT in text


def is_other_port(text: str) -> bool:
    """Whether the port speaks gRPC but serves other calls."""
    return text.startswith(_UNKNOWN_METHOD)


def connection_words(text: str) -> str:
    """The text of a failed call, replaced by a plain explanation if gRPC's text identifies the mistake."""
    if is_untrusted(text):
        return "this server belongs to another federation than the token or credential"
    if is_plaintext(text):
        return (
            "the port does not speak TLS: it may be the metrics port, or the server was started with --insecure; "
            f"give the main port ({MAIN_PORT})"
        )
    if is_other_port(text):
        return f"this port serves other calls, it may be the enrolment port; give the main port ({MAIN_PORT})"
    return text
