from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from cryptography import x509

from atoll.server.cli.operator import operator
from atoll.server.identity import OperatorCredential
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def test_new_makes_the_key_here_and_writes_a_credential(
    fake: Any, invoke: Callable[..., Result], tmp_path: Path
) -> None:
    path = tmp_path / "alice.json"
    result = invoke(operator, "new", "alice", "-o", str(path), "--expires", "7d")
    assert result.exit_code == 0, result.output
    made = OperatorCredential.read(path)
    assert (made.name, made.address, made.certificate, made.ca_certificate) == ("alice", fake.address, "cert", "ca")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (asked,) = fake.control.asked
    assert (asked.name, asked.lifetime_s) == ("alice", 7 * 86_400)
    assert x509.load_pem_x509_csr(asked.csr_pem).is_signature_valid
    assert made.key not in result.output
    assert b"PRIVATE" not in asked.SerializeToString()


def test_new_writes_over_nothing(fake: Any, invoke: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "alice.json"
    path.write_text("mine")
    result = invoke(operator, "new", "alice", "-o", str(path))
    assert result.exit_code != 0
    assert (path.read_text(), fake.control.asked) == ("mine", [])


def test_new_asks_for_a_role(fake: Any, invoke: Callable[..., Result], tmp_path: Path) -> None:
    assert invoke(operator, "new", "alice", "-o", str(tmp_path / "a.json"), "--role", "privacy-officer").exit_code == 0
    assert invoke(operator, "new", "alice", "-o", str(tmp_path / "b.json")).exit_code == 0
    assert [one.role for one in fake.control.asked] == [
        control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER,
        control_pb2.OPERATOR_ROLE_UNSPECIFIED,
    ]
    assert "'root' is not one of" in invoke(operator, "new", "x", "-o", "x.json", "--role", "root").output


def test_a_role_is_changed(fake: Any, invoke: Callable[..., Result]) -> None:
    assert invoke(operator, "role", "bob", "viewer").output == "operator bob is a viewer\n"
    (asked,) = fake.control.asked
    assert (asked.name, asked.role) == ("bob", control_pb2.OPERATOR_ROLE_VIEWER)


def test_whoami_says_what_one_may_do(fake: Any, invoke: Callable[..., Result]) -> None:
    fake.control.role, fake.control.actions = control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER, ("run.cancel", "run.pause")
    first, second = invoke(operator, "whoami").output.splitlines()
    assert first == f"dora, a privacy officer at {fake.address}, by certificate ab"
    assert second == "may read, and: run.cancel, run.pause"
    fake.control.actions = ()
    assert invoke(operator, "whoami").output.splitlines()[1] == "may read"
    found = json.loads(invoke(operator, "whoami", "--json").stdout)
    assert (found["role"], found["actions"]) == ("privacy_officer", [])


def test_whoami_says_which_actions_are_about_a_project_and_which_about_the_server(
    fake: Any, invoke: Callable[..., Result]
) -> None:
    fake.control.actions, fake.control.server_actions = ("run.cancel",), ("project.create", "storage.prune")
    lines = invoke(operator, "whoami", "--project", "cardio").output.splitlines()
    assert lines[1:] == [
        "may read in project cardio, and: run.cancel",
        "may, for the server as a whole: project.create, storage.prune",
    ]
    fake.control.role, fake.control.actions, fake.control.server_actions = 0, (), ()
    fake.control.own_projects = ["cardio", "onco"]
    last = invoke(operator, "whoami").output.splitlines()[-1]
    assert last == "what it may do depends on the project: --project cardio or onco"


def test_list_shows_who_is_in_force(invoke: Callable[..., Result]) -> None:
    lines = invoke(operator, "list").stdout.splitlines()
    for name, state in (("alice", "in force"), ("bob", "revoked"), ("carol", "expired")):
        assert any(name in line and state in line for line in lines), lines
    found = json.loads(invoke(operator, "list", "--json").stdout)
    assert [(one["name"], one["certificates"]) for one in found] == [("alice", 1), ("bob", 0), ("carol", 0)]


def test_revoke_tells_what_became_of_it(fake: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(operator, "revoke", "bob", "--reason", "left")
    assert "operator bob is revoked; voided 2 unused join tokens" in result.stdout
    assert (fake.control.asked[0].name, fake.control.asked[0].reason) == ("bob", "left")
