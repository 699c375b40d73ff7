"""The server's credentials: what gRPC is told at each handshake."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from atoll.server.daemon import listeners
from atoll.server.identity import Authority, ServerKeyPair

DAY_S = 86_400.0
Fetch = Callable[[], object]


def test_grpc_gets_a_certificate_only_when_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same again would be exchanged at every handshake, under those of other threads: that brought servers down."""
    fetches: list[Fetch] = []
    made: list[str] = []

    def take(first: object, fetch: Fetch, **_: object) -> None:
        del first
        fetches.append(fetch)

    def make(pairs: list[tuple[bytes, bytes]], **_: object) -> str:
        made.append(pairs[0][1].decode())
        return f"configuration {len(made)}"

    now = time.time()
    clock = [now]
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", take)
    monkeypatch.setattr(grpc, "ssl_server_certificate_configuration", make)
    monkeypatch.setattr(listeners, "_CERTIFICATE_CHECK_S", 0.0)
    authority = Authority.open(tmp_path, now=now)
    listeners.server_credentials(authority, ["localhost"], mutual=True, clock=lambda: clock[0])

    (fetch,) = fetches
    assert [fetch(), fetch()] == [None, None]
    pair: ServerKeyPair = authority.server_key_pair(["localhost"], now=now)
    clock[0] = pair.not_after - DAY_S
    assert fetch() == "configuration 2"
    assert fetch() is None
    assert len(set(made)) == 2
