from __future__ import annotations

import pytest

from atoll.wire.loopback import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.255.0.9", "::1", "[::1]", "[localhost]"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "10.0.0.1", "128.0.0.1", "::", "example.org", "127.0.0.1.example.org", "localhost.example.org"]
)
def test_another_machine(host: str) -> None:
    assert not is_loopback(host)
