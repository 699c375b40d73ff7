"""After each migration the previous release still works (``migrations.compatibility``), and none is changed later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command, op
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from atoll.server.stores import schema_version
from atoll.server.stores.dialects import sqlite_url, writer_engine
from atoll.server.stores.migrations.compatibility import FIRST, LOCKS_OUT, RELEASED, RETIRED, USABLE_FROM, usable_from
from atoll.server.stores.schema import metadata
from tests.server.stores.migration_rules import Rules, droppable, operations_of

PINNED = Path(__file__).parent / "schemas"
REVISIONS = schema_version.revisions()
LATER = [revision for revision in REVISIONS if revision > FIRST]


def script_of(revision: str) -> Callable[[], None]:
    script = ScriptDirectory.from_config(schema_version._config()).get_revision(revision)
    assert script is not None
    upgrade: Callable[[], None] = script.module.upgrade
    return upgrade


def release_before(revision: str) -> str:
    """The newest revision of the release preceding the one that introduces a revision."""
    return max((head for head in RELEASED.values() if head < revision), default=FIRST)


def test_servers_of_the_release_before_go_on_after_each_migration() -> None:
    """The rules read every migration, and hold for those after ``FIRST``."""
    operations = {revision: operations_of(script_of(revision)) for revision in REVISIONS}
    assert all(operations.values()), "a migration without operations was not read"
    for revision in LATER:
        found = Rules(droppable(RETIRED, usable_from(revision))).violations(operations[revision])
        assert revision in LOCKS_OUT or not found, f"revision {revision}: " + "; ".join(found)


def test_each_revision_says_which_servers_may_use_it() -> None:
    assert list(USABLE_FROM) == [FIRST, *LATER], "each migration needs its line"
    assert set(LOCKS_OUT) <= set(LATER)
    for revision in LATER:
        expected = release_before(revision)
        if revision in LOCKS_OUT:
            assert expected < USABLE_FROM[revision] <= revision
        else:
            floor = max([expected, *(USABLE_FROM[one] for one in LOCKS_OUT if one < revision)])
            assert USABLE_FROM[revision] == floor, f"servers of the release before have revision {expected}"


def test_what_is_retired_can_be_left_out() -> None:
    there = {f"{table.name}.{column.name}": column for table in metadata.tables.values() for column in table.columns}
    for name in RETIRED:
        column = there.get(name)
        assert column is None or column.nullable or column.server_default is not None, f"{name}: nothing writes it"


def described(connection: Connection) -> set[str]:
    """The database as lines, one per column, key, reference or index."""
    seen, lines = inspect(connection), set[str]()
    for table in set(seen.get_table_names()) - {"alembic_version"}:
        for column in seen.get_columns(table):
            null = "null" if column["nullable"] else "not null"
            default = "" if column["default"] is None else f" default {column['default']}"
            lines.add(f"{table}.{column['name']} {column['type']} {null}{default}")
        lines.add(f"{table} key {', '.join(seen.get_pk_constraint(table)['constrained_columns'])}")
        lines.update(
            f"{table} {', '.join(key['constrained_columns'])} references {key['referred_table']} "
            f"({', '.join(key['referred_columns'])}) {key.get('options')}"
            for key in seen.get_foreign_keys(table)
        )
        lines.update(f"{table} unique {', '.join(one['column_names'])}" for one in seen.get_unique_constraints(table))
        lines.update(
            f"{table} {'unique ' if one['unique'] else ''}index {', '.join(map(str, one['column_names']))}"
            for one in seen.get_indexes(table)
        )
    return lines


def test_the_schema_of_each_revision_is_pinned(tmp_path: Path) -> None:
    """A database that was upgraded long ago has the results of the migrations at that time, so none may change."""
    engine, before = writer_engine(sqlite_url(tmp_path / "x.sqlite3")), set[str]()
    for revision in REVISIONS:
        with engine.begin() as connection:
            config = schema_version._config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            now = described(connection)
        found = "".join(f"- {line}\n" for line in sorted(before - now)) + "".join(
            f"+ {line}\n" for line in sorted(now - before)
        )
        pinned = PINNED / f"{revision}.txt"
        if not pinned.exists() and revision == REVISIONS[-1]:
            pinned.write_text(found, encoding="utf-8")
            pytest.fail(f"{pinned} was missing and is written: look at it, and commit it with the migration")
        assert found == pinned.read_text(encoding="utf-8"), f"migration {revision} gives another schema than before"
        before = now
    engine.dispose()


def add_nothing_old_servers_know() -> None:
    op.create_table("colours", sa.Column("name", sa.String(64), nullable=False), sa.PrimaryKeyConstraint("name"))
    op.create_index("ix_colours_name", "colours", ["name"], unique=True)
    op.execute("INSERT INTO colours (name) SELECT DISTINCT name FROM runs")
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=True))
        batch.add_column(sa.Column("shade", sa.Text(), nullable=False, server_default=""))
        batch.create_index("ix_runs_colour", ["colour"])
    op.execute("UPDATE runs SET colour = name")
    op.alter_column("runs", "reason", nullable=True)


def test_additions_pass() -> None:
    assert Rules().violations(operations_of(add_nothing_old_servers_know)) == []


@pytest.mark.parametrize(
    ("upgrade", "words"),
    [
        (lambda: op.add_column("runs", sa.Column("x", sa.Text(), nullable=False)), "runs.x: give it nullable"),
        (lambda: op.drop_column("runs", "seed"), "runs.seed: retire it"),
        (lambda: op.drop_table("audit"), "audit: retire it"),
        (lambda: op.alter_column("runs", "seed", new_column_name="start"), "runs.seed: add a new column"),
        (lambda: op.alter_column("runs", "seed", type_=sa.Text()), "runs.seed: add a new column"),
        (lambda: op.alter_column("runs", "seed", nullable=False), "runs.seed: servers before write"),
        (lambda: op.alter_column("tokens", "hosts", server_default=None), "tokens.hosts: servers before rely"),
        (lambda: op.rename_table("audit", "actions"), "RenameTableOp: tell migration_rules"),
        (lambda: op.create_index("ix", "runs", ["name"], unique=True), "runs: a unique index"),
        (lambda: op.create_unique_constraint("uq", "runs", ["name"]), "CreateUniqueConstraintOp: a constraint"),
        (lambda: op.create_foreign_key("fk", "runs", "models", ["id"], ["run_id"]), "CreateForeignKeyOp: a constraint"),
        (lambda: op.execute("UPDATE runs SET status = 'ended'"), "only what this migration adds"),
        (lambda: op.execute("DELETE FROM audit"), "only what this migration adds"),
    ],
)
def test_migrations_that_break_servers_of_the_previous_release_are_refused(
    upgrade: Callable[[], None], words: str
) -> None:
    (found,) = Rules().violations(operations_of(upgrade))
    assert words in found


def test_columns_and_tables_retired_a_release_ago_can_be_dropped() -> None:
    def upgrade() -> None:
        op.drop_column("runs", "seed")
        op.drop_table("audit")

    retired = {"runs.seed": "0009", "audit": "0010"}
    assert len(Rules(droppable(retired, "0009")).violations(operations_of(upgrade))) == 1
    assert Rules(droppable(retired, "0010")).violations(operations_of(upgrade)) == []
