"""What ``atoll client status`` reads while a client works in the same directory."""

from __future__ import annotations

from pathlib import Path

from atoll.client._connection.identity import Identity, store
from atoll.client._connection.keys import make_csr, make_key
from atoll.client.cli.status import status_of
from tests.client.tls import Authority


def test_a_model_that_a_client_removes_meanwhile_is_left_out(tmp_path: Path) -> None:
    authority, key_pem = Authority(), make_key()
    certificate = authority.client_certificate(make_csr(key_pem), "p1", 60.0).decode()
    store(tmp_path, Identity("p1", "o", "edge", "127.0.0.1:1", certificate, authority.pem.decode(), key_pem))
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "here").write_bytes(bytes(7))
    (blobs / "gone").symlink_to("elsewhere")  # listed, but not found
    found = status_of(tmp_path)
    assert (found.cached_models, found.cached_bytes) == (1, 7)
