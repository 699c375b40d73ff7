from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from atoll.server.cli import checks
from atoll.server.cli.checks import Status
from atoll.server.control import ServerInfo
from atoll.server.identity import Authority
from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400.0


def info(now: float, disk_free_bytes: int = 10**12) -> ServerInfo:
    return ServerInfo("1.0", 1, now, now, 3, 1, disk_free_bytes, ())


def test_the_versions_here_will_do() -> None:
    found = list(checks.versions())
    assert [item.check for item in found] == ["python", "grpc", "protobuf", "numpy", "numba"]
    assert {item.status for item in found} == {Status.OK}


def test_an_old_library_fails_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MODULES", {"numpy": "99.0", "no_such_module": "1"})
    _, numpy, missing = checks.versions()
    assert (numpy.status, numpy.remedy) == (Status.FAIL, "pip install 'numpy>=99.0'")
    assert missing.status is Status.FAIL


def test_a_private_data_directory_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (found,) = checks.data_directory(tmp_path, os.getuid())
    assert found.status is Status.OK


def test_a_data_directory_that_others_can_change_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (found,) = checks.data_directory(tmp_path, os.getuid())
    assert (found.status, found.remedy) == (Status.FAIL, f"chmod 700 {tmp_path}")


def test_a_data_directory_of_someone_else_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (found,) = checks.data_directory(tmp_path, os.getuid() + 1)
    assert (found.status is Status.FAIL) == (os.getuid() + 1 != 0)


def test_a_key_that_others_can_read_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    key = tmp_path / "ca" / "authority.key"
    key.parent.mkdir()
    key.touch(0o644)
    _, found = checks.data_directory(tmp_path, os.getuid())
    assert (found.status, found.remedy) == (Status.FAIL, f"chmod 600 {key}")


def test_a_missing_data_directory_is_a_warning(tmp_path: Path) -> None:
    (found,) = checks.data_directory(tmp_path / "none", os.getuid())
    assert found.status is Status.WARN


@pytest.mark.parametrize(("free_bytes", "status"), [(10**12, Status.OK), (10**9, Status.WARN), (10**7, Status.FAIL)])
def test_disk_space(free_bytes: int, status: Status) -> None:
    assert checks.disk("x", free_bytes).status is status


def test_a_disk_below_the_servers_reserve_fails_whatever_is_free() -> None:
    found = checks.disk("the server", 10**10, reserve_bytes=2 * 10**10)
    assert found.status is Status.FAIL
    assert "uploads are refused and rounds wait" in found.message
    assert "atoll server storage" in found.remedy


def test_the_disk_of_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert str(tmp_path) in checks.local_disk(tmp_path / "a" / "b").check


@pytest.mark.parametrize(
    ("later_s", "status"),
    [(0.0, Status.OK), (80 * DAY_S, Status.WARN), (91 * DAY_S, Status.FAIL), (-7200.0, Status.FAIL)],
)
def test_certificates_are_judged_by_their_dates(tmp_path: Path, later_s: float, status: Status) -> None:
    now = time.time()
    pair = Authority.open(tmp_path / "ca", now=now).server_key_pair(["localhost"], now=now)
    assert checks.certificate("x", pair.certificate_pem, now + later_s).status is status


def test_what_is_no_certificate_fails() -> None:
    assert checks.certificate("x", b"nonsense", 0.0).status is Status.FAIL


def test_the_certificates_of_a_data_directory_are_found(tmp_path: Path) -> None:
    now = time.time()
    Authority.open(tmp_path / "ca", now=now).server_key_pair(["localhost"], now=now)
    found = list(checks.certificate_files(tmp_path, now))
    assert [(item.check, item.status) for item in found] == [
        ("ca/authority.crt", Status.OK),
        ("ca/server.pem", Status.OK),
    ]
    assert list(checks.certificate_files(tmp_path / "none", now)) == []


@pytest.mark.parametrize(
    ("ahead_s", "status", "words"),
    [
        (0.5, Status.OK, "agrees"),
        (10.0, Status.WARN, "10.0 s ahead"),
        (-90.0, Status.FAIL, "90.0 s behind"),
    ],
)
def test_clocks_are_compared_at_half_the_round_trip(ahead_s: float, status: Status, words: str) -> None:
    found = list(checks.server(info(101.0 + ahead_s), "h:1", asked_at=100.0, answered_at=102.0))
    assert (found[-1].check, found[-1].status) == ("clock", status)
    assert words in found[-1].message


def test_a_port_in_use_is_not_free_and_a_free_one_not_reachable() -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.1", port)):
        (free,) = checks.ports("127.0.0.1", [port], serving=False)
        (reachable,) = checks.ports("127.0.0.1", [port], serving=True)
        assert (free.status, reachable.status) == (Status.FAIL, Status.OK)
    (free,) = checks.ports("127.0.0.1", [port], serving=False)
    (reachable,) = checks.ports("127.0.0.1", [port], serving=True)
    assert (free.status, reachable.status) == (Status.OK, Status.FAIL)
