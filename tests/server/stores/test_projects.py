from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, delete

from atoll.server.identity import Bound, OperatorRole, ParticipantKind, ProjectRole, Rights, mint
from atoll.server.stores import (
    Grant,
    Project,
    ProjectGrant,
    RecordConflictError,
    RecordMissingError,
    Store,
    audit,
    operators,
    project_roles,
    projects,
    schema_upgrades,
    schema_version,
    tokens,
)
from atoll.server.stores.audit import AuditEntry
from atoll.server.stores.migrations.compatibility import PROJECTS_FROM, usable_from
from atoll.server.stores.schema import audit as table
from tests.server.stores.samples import OpenStore

EDGE = ParticipantKind.EDGE
CARDIO = Project("cardio", 5.0, "admin", max_runs=2)
HEAD = schema_version.head_revision()


def oldest(store: Store) -> str:
    """The oldest revision whose servers may use the database."""
    return store.reader.submit(lambda connection: schema_upgrades.find(connection, HEAD).usable_from).result()


def test_the_default_project_is_there_without_a_row(open_store: OpenStore) -> None:
    store = open_store()
    assert store.reader.submit(projects.listed).result() == (Project("default"),)
    limited = Project("default", max_runs=1)
    store.writer.submit(projects.put, limited).result()
    store.writer.submit(projects.add, CARDIO).result()
    assert store.reader.submit(projects.listed).result() == (CARDIO, limited)
    with pytest.raises(RecordMissingError, match="there is no project 'none'"):
        store.reader.submit(projects.get, "none").result()
    with pytest.raises(RecordConflictError):
        store.writer.submit(projects.add, CARDIO).result()


def test_servers_of_before_are_locked_out_by_the_first_project(open_store: OpenStore) -> None:
    first = open_store()
    assert oldest(first) == usable_from(HEAD) < PROJECTS_FROM, "they go on while there is only default"
    first.writer.submit(projects.put, Project("default", max_runs=1)).result()
    assert oldest(first) == usable_from(HEAD)
    first.writer.submit(projects.add, CARDIO).result()
    assert oldest(first) == PROJECTS_FROM
    first.close()
    again = open_store()
    assert oldest(again) == PROJECTS_FROM, "also after a start, which notes the revision anew"
    again.writer.submit(lambda connection: connection.execute(delete(schema_upgrades.table))).result()
    again.close()
    assert oldest(open_store()) == PROJECTS_FROM, "and in a copy, whose notes are made anew"


def test_a_server_of_before_refuses_such_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path)
    store.writer.submit(projects.add, CARDIO).result()
    store.close()
    before = tuple(one for one in schema_version.revisions() if one < PROJECTS_FROM)
    monkeypatch.setattr(schema_version, "revisions", lambda: before)
    with pytest.raises(Exception, match=f"servers from revision {PROJECTS_FROM} on may use it"):
        Store.open(tmp_path)


def test_roles_in_projects(open_store: OpenStore) -> None:
    store = open_store()

    def work(connection: Connection) -> tuple[Rights, Rights, Rights]:
        operators.put(connection, Grant("dora", OperatorRole.VIEWER, "admin", 1.0))
        for role in (OperatorRole.OPERATOR, OperatorRole.ADMINISTRATOR):
            project_roles.put(connection, ProjectGrant("dora", "cardio", role, "", "admin", 1.0))
        project_roles.put(connection, ProjectGrant("eve", "cardio", OperatorRole.VIEWER, "north", "dora", 1.0))
        return tuple(project_roles.rights(connection, name) for name in ("dora", "eve", "nobody"))  # type: ignore[return-value]

    dora, eve, nobody = store.writer.submit(work).result()
    assert dora.within("cardio") == ProjectRole(OperatorRole.ADMINISTRATOR)
    assert dora.within("other") == ProjectRole(OperatorRole.VIEWER)
    assert eve == Rights(None, {"cardio": ProjectRole(OperatorRole.VIEWER, "north")})
    assert (eve.within("other"), nobody) == (None, Rights())


def test_open_tokens_of_a_project(open_store: OpenStore) -> None:
    store = open_store()

    def work(connection: Connection) -> tuple[int, int, int]:
        for project, kind in (("cardio", EDGE), ("cardio", ParticipantKind.AGGREGATOR), ("other", EDGE)):
            bound = Bound(project=project)
            tokens.add(connection, mint("acme", kind, created_by="a", now=0.0, bound=bound).record)
        before = tokens.count_open(connection, "cardio", now=1.0)
        voided = tokens.void_of_project(connection, "cardio", at=1.0)
        return before, voided, tokens.count_open(connection, "other", now=1.0)

    assert store.writer.submit(work).result() == (1, 2, 1)


def test_the_digest_of_an_entry_without_a_project_is_that_of_before(open_store: OpenStore) -> None:
    """A server of the previous release verifies the same chain."""
    store = open_store()
    entry = AuditEntry(5.0, "dora", "certificate ab", "10.0.0.7", "run.cancel", "r1", "why")
    kept = store.writer.submit(audit.append, entry).result()
    assert kept.digest == "4585ac772b9de85d2572b5dd1b81af8b2bef1a37dcdd740007b43804997e6abe"
    named = store.writer.submit(audit.append, AuditEntry(6.0, "dora", "", "", "run.pause", project="cardio")).result()
    assert store.reader.submit(audit.verified).result().flaw == ""
    store.writer.submit(
        lambda connection: connection.execute(table.update().where(table.c.seq == named.seq).values(project="other"))
    ).result()
    assert "was changed" in store.reader.submit(audit.verified).result().flaw


def test_names_of_populations() -> None:
    assert projects.qualified("default", "patients") == "patients"
    assert projects.qualified("cardio", "patients") == "cardio/patients"
    assert projects.qualified("cardio", "onco/patients") == "onco/patients"
    assert [projects.of_population(name) for name in ("patients", "cardio/patients")] == ["default", "cardio"]
