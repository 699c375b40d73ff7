from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from atoll.operator.connecting import Target
from atoll.server.cli.doctor import _connection, doctor
from atoll.server.identity import Authority, OperatorCredential
from atoll.server.stores import Store
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.wire.v1 import control_pb2
from tests.ports import free_ports
from tests.server.privacy.ledgers import fill
from tests.server.privacy.test_reconciling import cut

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_healthy_server_passes(fake: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    fake.control.now = time.time()
    port = fake.address.rpartition(":")[2]
    arguments = ["--data", str(tmp_path), "--insecure", "--server", fake.address, "--enrol-port", port]
    result = CliRunner().invoke(doctor, arguments)
    assert result.exit_code == 0, result.output
    assert "version 9.9" in result.stdout


def test_the_audit_log_is_verified_where_the_role_allows_it(fake: Any, tmp_path: Path) -> None:
    def found() -> tuple[str, str]:
        arguments = ["--data", str(tmp_path), "--insecure", "--server", fake.address, "--json"]
        shown = json.loads(CliRunner().invoke(doctor, arguments).stdout)
        return next((one["status"], one["message"]) for one in shown if one["check"] == "audit log")

    assert found() == ("ok", "0 entries, head ab")
    fake.control.audit_flaw = "entry 3 of the audit log was changed"
    assert found() == ("fail", "entry 3 of the audit log was changed")
    fake.control.audit_in_full = False  # as for a role in single projects
    not_checked = ("ok", "not checked: this needs a role in all projects that may read it")
    assert found() == not_checked
    fake.control.role = control_pb2.OPERATOR_ROLE_OPERATOR
    assert found() == not_checked


def test_a_wrong_clock_gives_exit_code_1_and_a_remedy(fake: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    port = fake.address.rpartition(":")[2]
    arguments = ["--data", str(tmp_path), "--insecure", "--server", fake.address, "--enrol-port", port, "--json"]
    result = CliRunner().invoke(doctor, arguments)
    assert result.exit_code == 1
    clock = next(item for item in json.loads(result.stdout) if item["check"] == "clock")
    assert clock["status"] == "fail"
    assert "NTP" in clock["remedy"]


def test_a_damaged_ledger_fails(fake: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    fake.control.now = time.time()
    fake.control.populations = [
        control_pb2.PopulationSummary(population="clinic", charges=5, head="ab" * 32),
        control_pb2.PopulationSummary(population="school", flaw="charge 3 was changed"),
    ]
    port = fake.address.rpartition(":")[2]
    arguments = ["--data", str(tmp_path), "--insecure", "--server", fake.address, "--enrol-port", port, "--json"]
    result = CliRunner().invoke(doctor, arguments)
    assert result.exit_code == 1
    found = {item["check"]: item for item in json.loads(result.stdout)}
    assert found["ledger of clinic"]["status"] == "ok"
    assert found["ledger of school"]["message"] == "charge 3 was changed"
    assert "backup" in found["ledger of school"]["remedy"]


def test_without_a_server_the_ledgers_are_read_from_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    store = Store.open(tmp_path)
    store.writer.submit(fill).result()
    arguments = ["--data", str(tmp_path), "--server", "127.0.0.1:1", "--json"]
    found = {item["check"]: item for item in json.loads(CliRunner().invoke(doctor, arguments).stdout)}
    assert found["ledger of clinic"]["message"].startswith("5 charges, head ")
    store.writer.submit(cut, 4).result()
    store.close()
    result = CliRunner().invoke(doctor, arguments)
    assert result.exit_code == 1
    found = {item["check"]: item for item in json.loads(result.stdout)}
    assert "run rsecond has released 2 models, 1 charges for them are here" in found["ledger of clinic"]["message"]
    (tmp_path / DATABASE_FILE).write_bytes(b"no database at all, and longer than a page's header is")
    found = {item["check"]: item for item in json.loads(CliRunner().invoke(doctor, arguments).stdout)}
    assert (found["ledgers"]["status"], "damaged" in found["ledgers"]["message"]) == ("warn", True)


def test_a_first_start_is_checked_by_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    (tmp_path / "shared").mkdir()
    port = free_ports()
    settings = f'data = "data"\nport = {port}\n[storage]\nblobs = "file://{tmp_path}/shared/atoll"\n'
    (tmp_path / "server.toml").write_text(settings)
    result = CliRunner().invoke(doctor, ["--config", str(tmp_path / "server.toml"), "--json"])
    found = {one["check"]: one for one in json.loads(result.stdout)}
    assert "the first start claims" in found["bucket"]["message"]
    assert str(tmp_path / "data") in found["data directory"]["message"]
    assert found[f"port {port}"]["status"] == "ok"


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("prot = 7400\n")
    result = CliRunner().invoke(doctor, ["--config", str(tmp_path / "server.toml")])
    assert result.exit_code == 2
    assert "server.toml:1: prot" in result.output


def test_without_a_server_the_ports_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    result = CliRunner().invoke(doctor, ["--data", str(tmp_path / "none"), "--server", "127.0.0.1:1", "--json"])
    found = {item["check"]: item["status"] for item in json.loads(result.stdout)}
    assert found["credential"] == "warn"
    assert "port 1" in found
    assert "port 2" in found


def test_another_machine_that_cannot_be_reached_fails_without_trying_our_ports(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "ca", now=time.time())
    made = authority.issue_operator("admin", now=time.time())
    address = "203.0.113.1.invalid:7400"
    credential = OperatorCredential(
        "admin", address, authority.certificate_pem.decode(), made.issued.pem.decode(), made.key_pem.decode()
    )
    found = {item.check: item.status.value for item in _connection(Target(address, credential), address, None)}
    assert found == {"operator credential": "ok", "server": "fail"}
