from __future__ import annotations

import json

from atoll.server.cli.server import server
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import NOW, Fake, Invoke, asked_for

ENTRY = control_pb2.AuditEntry(
    seq=7,
    at=NOW,
    operator="dora",
    credential="certificate ab12",
    address="10.0.0.7",
    action="run.cancel",
    subject="r1",
    detail="wrong data",
    outcome="refused",
    code="operator.role",
    digest="cd",
)


def test_entries_are_a_table_or_json(fake: Fake, invoke: Invoke) -> None:
    fake.control.audit = [ENTRY]
    shown = invoke(server, "audit").output
    for part in (
        "7",
        "dora",
        "run.cancel",
        "r1",
        "wrong data",
        "refused: operator.role",
        "10.0.0.7",
        "certificate ab12",
    ):
        assert part in shown
    (found,) = json.loads(invoke(server, "audit", "--json").stdout)
    assert (found["seq"], found["at"], found["digest"]) == (7, NOW, "cd")


def test_entries_name_their_projects_where_there_are_several(fake: Fake, invoke: Invoke) -> None:
    of_one = control_pb2.AuditEntry()
    of_one.CopyFrom(ENTRY)
    of_one.project = "cardio"
    fake.control.audit = [ENTRY, of_one]
    head, *rows = (line.split() for line in invoke(server, "audit").output.splitlines() if line.strip())
    assert head[-1] == "project"
    assert [row[-1] for row in rows if row[0] == "7"] == ["-", "cardio"]
    fake.control.audit = [ENTRY]
    assert "project" not in invoke(server, "audit").output


def test_filters_reach_the_server(fake: Fake, invoke: Invoke) -> None:
    invoke(
        server,
        *("audit", "-n", "3", "--operator", "dora", "--action", "run", "--subject", "r1"),
        *("--outcome", "done", "--since", "2026-11-01", "--until", "2026-11-02 12:30"),
    )
    (asked,) = asked_for(fake, control_pb2.ListAuditRequest)
    assert (asked.limit, asked.operator, asked.action, asked.subject, asked.outcome) == (3, "dora", "run", "r1", "done")
    assert asked.until - asked.since == 36.5 * 3600


def test_without_entries(invoke: Invoke) -> None:
    assert invoke(server, "audit", "--all").output == "the audit log has no such entry\n"


def test_the_chain_is_verified(fake: Fake, invoke: Invoke) -> None:
    fake.control.audit = [ENTRY]
    assert invoke(server, "audit", "--verify").output == "1 entry from 0 on, head ab\n"
    fake.control.audit_flaw = "entry 3 of the audit log was changed"
    result = invoke(server, "audit", "--verify")
    assert result.exit_code == 1
    assert "entry 3 of the audit log was changed" in result.output
