import json
import stat
from pathlib import Path

import pytest

from atoll.server.identity import CredentialError, OperatorCredential

CREDENTIAL = OperatorCredential("alice", "localhost:7400", "ca pem", "certificate pem", "key pem")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "operator.json"
    CREDENTIAL.write(path)
    assert OperatorCredential.read(path) == CREDENTIAL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "key pem" not in repr(CREDENTIAL)


def test_a_credential_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operator.json"
    CREDENTIAL.write(path)
    path.chmod(0o644)
    with pytest.raises(CredentialError, match="chmod 600"):
        OperatorCredential.read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"format": "atoll operator 2"}).encode(),
        json.dumps({"format": "atoll operator 1", "name": "alice"}).encode(),
        json.dumps({"format": "atoll operator 1", **vars(CREDENTIAL), "more": "x"}).encode(),
        json.dumps({"format": "atoll operator 1", **vars(CREDENTIAL), "key": 1}).encode(),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "operator.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CredentialError, match="operator credential") as refused:
        OperatorCredential.read(path)
    assert str(path) in str(refused.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "operator.json"
    with pytest.raises(CredentialError, match=str(path)):
        OperatorCredential.read(path)
    with pytest.raises(CredentialError, match=str(path)):
        CREDENTIAL.write(path)
