"""Vectors of join tokens."""

from __future__ import annotations

import base64
from typing import Any

from atoll.wire.join_token import JoinToken


def tokens(ca_certificate_pem: bytes) -> dict[str, Any]:
    """A join token with its content, the same token wrapped by a terminal, and invalid texts."""
    made = JoinToken("fed.example.org:7401", ca_certificate_pem, "tabcdefghijkl", "s3cret-s3cret-s3cret")
    text = made.encode()
    der = base64.b64decode("".join(ca_certificate_pem.decode().splitlines()[1:-1]))
    middle = len(text) // 2
    other = "A" if text[middle] != "A" else "B"
    return {
        "about": "Join tokens (docs/protocol.md, Join tokens)",
        "cases": [
            {
                "token": written,
                "address": made.address,
                "id": made.token_id,
                "secret": made.secret,
                "ca_certificate_der": der.hex(),
            }
            for written in (text, f" {text[:79]}\n  {text[79:158]}\n{text[158:]}\n")
        ],
        "refused": [
            {"token": text[:-1], "why": "cut short"},
            {"token": text[:middle] + other + text[middle + 1 :], "why": "a character is wrong"},
            {"token": text.replace("atoll-join-1", "atoll-join-2"), "why": "of another version"},
            {"token": "hello", "why": "no join token"},
        ],
    }
