"""Where the console listens, and which origins are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.console.site import Listening, Site
from atoll.operator import BadInputError

EVERY = "0.0.0.0"  # noqa: S104 - nothing listens
TLS: dict[str, Any] = {"certificate": Path("chain.pem"), "key": Path("key.pem")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "192.0.2.1"}, "--host 192.0.2.1 is not a loopback address"),
        ({"host": EVERY}, "is not a loopback address"),
        ({"host": EVERY, **TLS}, "add --origin"),
        ({"host": "::", "plaintext": True}, "add --origin"),
        ({"certificate": Path("chain.pem")}, "belong together"),
        ({"key": Path("key.pem")}, "belong together"),
        ({"plaintext": True, **TLS}, "exclude each other"),
        ({"origin": "console.example"}, "expected SCHEME://HOST"),
        ({"origin": "https://console.example/"}, "expected SCHEME://HOST"),
        ({"origin": "https://console.example:443"}, "expected SCHEME://HOST"),
        ({"origin": "https://Console.example"}, "expected SCHEME://HOST"),
        ({"origin": "https://user@console.example"}, "expected SCHEME://HOST"),
        ({"origin": "ftp://console.example:1"}, "expected SCHEME://HOST"),
        ({"origin": "https://console.example:x"}, "expected SCHEME://HOST"),
    ],
)
def test_what_would_be_unsafe_or_unclear_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Listening(**given)
    assert said in str(caught.value)
    assert caught.value.remedy


def test_a_loopback_address_has_the_names_of_this_machine() -> None:
    site = Site.of(Listening(), 7410)
    assert site.origin == "http://127.0.0.1:7410"
    assert site.hosts == {"127.0.0.1:7410", "localhost:7410", "[::1]:7410"}
    assert not site.secure
    assert site.cookie == "atoll-console-7410"


def test_another_address_has_its_own_name_alone() -> None:
    site = Site.of(Listening("console.example", 443, **TLS), 443)
    assert site.origin == "https://console.example"
    assert site.hosts == {"console.example"}
    assert site.secure
    assert site.cookie == "__Host-atoll-console-443"


def test_a_given_origin_is_the_only_one() -> None:
    site = Site.of(Listening(EVERY, 80, plaintext=True, origin="https://console.example:9000"), 80)
    assert site.origins == {"https://console.example:9000"}
    assert site.hosts == {"console.example:9000"}
    assert site.secure
