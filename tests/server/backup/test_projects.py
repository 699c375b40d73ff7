"""Two projects of the previous release survive backups and moves of the database complete and isolated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.server.backup import back_up, move_database, restore
from atoll.server.identity import OperatorRole
from atoll.server.rpc.operations import ROLE_NUMBERS
from atoll.server.stores import schema_upgrades
from atoll.server.stores.database_place import DATABASE_FILE, choose
from atoll.server.stores.dialects import parse_url, reader_engine, sqlite_url, writer_engine
from atoll.server.stores.migrations.compatibility import PROJECTS_FROM
from atoll.server.stores.schema_version import head_revision
from atoll.wire.v1 import control_pb2 as pb
from tests.patience import WAIT_S
from tests.server.rpc.test_operators import DAY_S
from tests.server.rpc.test_projects import new_project, submit, token, within
from tests.server.rpc.world import Caller, Key, Participant, World, job, refused_code
from tests.server.stores.samples import NOW
from tests.server.stores.test_schema_version import migrate

PATIENT_S = 3600.0
"""Rounds stay open while the server moves."""
PROJECTS = ("default", "cardio", "onco")


@dataclass(frozen=True)
class Credential:
    """What a caller keeps while the server moves."""

    key: Key
    certificate: bytes
    name: str = ""

    async def at(self, world: World) -> Participant:
        """The caller, at the server as it runs now."""
        channel = await world.channel(self.key.pem, self.certificate)
        return Participant(channel, self.name, self.key, self.certificate)


@dataclass(frozen=True)
class Team:
    """What one project has: an administrator, an operator for one organisation, a participant, a run."""

    boss: Credential
    carol: Credential
    participant: Credential
    run: str


async def operator(world: World, name: str, project: str, organisation: str = "") -> Credential:
    key = Key()
    role = ROLE_NUMBERS[OperatorRole.OPERATOR if organisation else OperatorRole.ADMINISTRATOR]
    request = pb.CreateOperatorRequest(
        name=name, csr_pem=key.csr, lifetime_s=DAY_S, role=role, organisation=organisation
    )
    made = await world.operator.control.CreateOperator(request, timeout=WAIT_S, metadata=within(project))
    return Credential(key, made.certificate_pem)


async def newcomer(world: World, by: Caller) -> Credential:
    key = Key()
    answer = await world.enrol_with(await world.token("north", by=by), key)
    return Credential(key, answer.certificate_pem, answer.participant)


async def team(world: World, name: str) -> Team:
    await new_project(world, name, runs=3, participants=9)
    boss, carol = await operator(world, f"{name}-boss", name), await operator(world, f"{name}-carol", name, "north")
    caller = await boss.at(world)
    limit = pb.LimitPopulationRequest(population="patients", epsilon=2.0, delta=1e-6, adjacency="add_remove")
    await caller.control.LimitPopulation(limit, timeout=WAIT_S)
    participant = await newcomer(world, caller)
    await token(caller, organisation="south")
    return Team(boss, carol, participant, await submit(caller, job(window_s=PATIENT_S)))


async def found(world: World) -> dict[str, Any]:
    """What the server has, by project."""
    control = world.operator.control
    seen: dict[str, Any] = {}
    for name in PROJECTS:
        scope = within(name)
        people = await control.ListParticipants(pb.ListParticipantsRequest(), timeout=WAIT_S, metadata=scope)
        seen[name] = {
            "runs": await control.ListRuns(pb.ListRunsRequest(), timeout=WAIT_S, metadata=scope),
            "participants": [(one.participant, one.organisation, one.project) for one in people.participants],
            "tokens": await control.ListTokens(pb.ListTokensRequest(), timeout=WAIT_S, metadata=scope),
            "populations": await control.ListPopulations(pb.ListPopulationsRequest(), timeout=WAIT_S, metadata=scope),
            "operators": await control.ListOperators(pb.ListOperatorsRequest(), timeout=WAIT_S, metadata=scope),
        }
    projects = await control.ListProjects(pb.ListProjectsRequest(), timeout=WAIT_S)
    seen["quotas"] = [(one.project, one.quota, one.runs, one.participants) for one in projects.projects]
    return seen


async def audited(world: World) -> set[tuple[int, str, str, str]]:
    """The entries of the audit log, which is whole."""
    audit = await world.operator.control.ListAudit(pb.ListAuditRequest(verify=True), timeout=WAIT_S)
    assert not audit.chain.flaw, audit.chain
    return {(one.seq, one.action, one.project, one.digest) for one in audit.entries}


async def check(
    data: Path, teams: dict[str, Team], before: dict[str, Any], entries: set[tuple[int, str, str, str]]
) -> None:
    """At a server on this directory all of it is there, the projects are apart, and their runs go on."""
    async with World(data, silence_s=PATIENT_S) as world:
        assert await found(world) == before
        assert entries <= await audited(world)
        for name, other in (("cardio", "onco"), ("onco", "cardio")):
            own, theirs = teams[name], teams[other]
            boss, carol = await own.boss.at(world), await own.carol.at(world)
            listed = await boss.control.ListRuns(pb.ListRunsRequest(), timeout=WAIT_S)
            assert [(one.run, one.project) for one in listed.runs] == [(own.run, name)]
            foreign = pb.GetRunRequest(run=theirs.run)
            assert (await refused_code(boss.control.GetRun(foreign, timeout=WAIT_S)))[1] == "run.missing"
            people = await carol.control.ListParticipants(pb.ListParticipantsRequest(), timeout=WAIT_S)
            assert [one.participant for one in people.participants] == [own.participant.name]
            assert (await refused_code(carol.control.ListRuns(pb.ListRunsRequest(), timeout=WAIT_S)))[1] == (
                "operator.organisation"
            )
            async with (await own.participant.at(world)).check_in() as stream:
                assert (await stream.next("participate")).key.run == own.run


def usable_from(data: Path) -> str:
    """The oldest schema whose servers the directory's database admits, before a server has opened it."""
    engine = reader_engine(choose(data, None), connections=1)
    with engine.connect() as connection:
        found = schema_upgrades.find(connection, head_revision())
    engine.dispose()
    return found.usable_from


def rebuilt(data: Path, revision: str) -> None:
    """Make the directory's database one of an older schema, with the rows and columns that it knows."""
    newer, path = data / "newer.sqlite3", data / DATABASE_FILE
    path.rename(newer)
    engine = writer_engine(sqlite_url(path))
    with engine.begin() as connection:
        migrate(connection, revision)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ATTACH ? AS newer", (str(newer),))
        tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if table in ("alembic_version", "schema_upgrades") or table.startswith("sqlite_"):
                continue
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")  # noqa: S608
        connection.commit()
    newer.unlink()


async def test_two_projects_go_everywhere_and_stay_apart(tmp_path: Path, postgresql_url: str) -> None:
    data = tmp_path / "data"
    async with World(data, silence_s=PATIENT_S) as world:
        run = await world.submit(job(window_s=PATIENT_S))
        first = await newcomer(world, world.operator)
    rebuilt(data, "0008")
    async with World(data, silence_s=PATIENT_S) as world:
        (kept,) = (await world.operator.control.ListRuns(pb.ListRunsRequest(), timeout=WAIT_S)).runs
        assert (kept.run, kept.project) == (run, "default")
        async with (await first.at(world)).check_in() as stream:
            assert (await stream.next("participate")).key.run == run
        teams = {name: await team(world, name) for name in PROJECTS[1:]}
        before, entries = await found(world), await audited(world)
    assert {project for _, _, project, _ in entries} == {"", *teams}
    assert usable_from(data) == PROJECTS_FROM
    await check(data, teams, before, entries)

    def kept_and_restored(name: str) -> Path:
        manifest = back_up(data, tmp_path / f"{name}-kept", now=NOW)
        assert {line.run for line in manifest.runs} == {run, *(one.run for one in teams.values())}
        restore(tmp_path / f"{name}-kept", tmp_path / name, now=NOW)
        assert usable_from(tmp_path / name) == PROJECTS_FROM
        return tmp_path / name

    await check(kept_and_restored("from-file"), teams, before, entries)
    move_database(data, parse_url(postgresql_url))
    assert usable_from(data) == PROJECTS_FROM, "servers of the release before would mix the projects"
    await check(data, teams, before, entries)
    await check(kept_and_restored("from-server"), teams, before, entries)
    move_database(data, None)
    assert usable_from(data) == PROJECTS_FROM
    await check(data, teams, before, entries)


async def test_a_server_without_projects_stays_usable_by_the_release_before(
    tmp_path: Path, postgresql_url: str
) -> None:
    async with World(tmp_path / "data") as world:
        await world.submit()
    oldest = usable_from(tmp_path / "data")
    assert oldest < PROJECTS_FROM
    move_database(tmp_path / "data", parse_url(postgresql_url))
    assert usable_from(tmp_path / "data") == oldest
