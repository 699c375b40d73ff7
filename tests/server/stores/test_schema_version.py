import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

import atoll.server
from atoll.server.stores import (
    Charge,
    SchemaError,
    Store,
    charges,
    database_place,
    runs,
    schema_upgrades,
    schema_version,
)
from atoll.server.stores.dialects import parse_url, sqlite_url, writer_engine
from atoll.server.stores.migrations import compatibility
from atoll.server.stores.row_conversion import to_checksummed_row
from atoll.server.stores.schema import metadata
from atoll.server.stores.schema_version import head_revision, require_known, require_usable, upgrade
from tests.patience import WAIT_S
from tests.server.stores.samples import NOW, RUN, OpenStore, run

Description = dict[str, tuple[object, ...]]


def described(connection: Connection) -> Description:
    """Every table with columns, keys and indexes, without their order."""
    seen = inspect(connection)

    def of(table: str) -> tuple[object, ...]:
        columns = {one["name"]: (str(one["type"]), one["nullable"], one["default"]) for one in seen.get_columns(table)}
        references = {
            one["name"]: (
                one["constrained_columns"],
                one["referred_table"],
                one["referred_columns"],
                one.get("options"),
            )
            for one in seen.get_foreign_keys(table)
        }
        unique = {one["name"]: one["column_names"] for one in seen.get_unique_constraints(table)}
        indexes = {one["name"]: (one["column_names"], bool(one["unique"])) for one in seen.get_indexes(table)}
        return columns, seen.get_pk_constraint(table), references, unique, indexes

    return {table: of(table) for table in seen.get_table_names()}


def migrate(connection: Connection, revision: str) -> None:
    config = schema_version._config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def test_a_new_database_is_as_all_migrations_would_leave_it(tmp_path: Path, database_url: str | None) -> None:
    engine = writer_engine(sqlite_url(tmp_path / "x.sqlite3") if database_url is None else parse_url(database_url))
    found = list[Description]()
    for make in (lambda connection: migrate(connection, "head"), schema_version._create):
        with engine.connect() as connection, connection.begin() as transaction:
            make(connection)
            found.append(described(connection))
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert context.get_current_revision() == head_revision()
            assert list(compare_metadata(context, metadata)) == []
            transaction.rollback()
    migrated, created = found
    assert created == migrated
    assert set(created) == {*metadata.tables, "alembic_version"}
    engine.dispose()


def test_a_new_database_is_made_without_alembic(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from atoll.server.stores import Store
Store.open(Path({str(tmp_path)!r})).close()
assert "alembic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_revisions_are_those_of_the_scripts_in_their_order() -> None:
    scripts = list(ScriptDirectory.from_config(schema_version._config()).walk_revisions())
    assert schema_version.revisions() == tuple(script.revision for script in reversed(scripts))


def test_upgrading_again_changes_nothing(open_store: OpenStore) -> None:
    first = open_store()
    first.writer.submit(runs.add, run()).result()
    first.close()
    assert open_store().reader.submit(runs.get, RUN).result() == run()


LATER = ("seed", "extended_after", "project")
"""Columns of runs that the first revision has not."""


def test_a_ledger_of_the_first_revision_keeps_its_charges(tmp_path: Path, database_url: str | None) -> None:
    path = tmp_path / "data" / "atoll.sqlite3"
    path.parent.mkdir()
    engine = writer_engine(sqlite_url(path) if database_url is None else parse_url(database_url))
    with engine.begin() as connection:
        migrate(connection, "0001")
        values = {name: value for name, value in to_checksummed_row(run()).items() if name not in LATER}
        columns = ", ".join(values)
        connection.execute(text(f"INSERT INTO runs ({columns}) VALUES (:{', :'.join(values)})"), values)  # noqa: S608  # our columns
        old = {"run": RUN, "at": NOW}
        connection.execute(text("INSERT INTO charges VALUES (:run, 0, 0, 'none', '{}', :at)"), old)
    engine.dispose()
    if database_url is not None:
        database_place.note(path.parent, parse_url(database_url))
    store = Store.open(path.parent, url=database_url)
    assert store.reader.submit(charges.listed, RUN).result() == (Charge(RUN, 0, 0, "none", "{}", NOW),)
    assert store.reader.submit(runs.get, RUN).result() == run()
    store.close()


def test_a_newer_database_is_refused_naming_both_revisions(open_store: OpenStore) -> None:
    first = open_store()
    first.writer.submit(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'"))).result()
    first.close()
    with pytest.raises(SchemaError, match=f"revision 9999, newer than the {head_revision()}") as refused:
        open_store()
    assert "or a later one" in refused.value.detail.remedy
    with pytest.raises(SchemaError, match="9999"):
        open_store(primary=False)


def upgraded_by_the_next_version(connection: Connection, *, usable_from: str) -> None:
    """Modify the database like an unknown newer version, with more of everything."""
    connection.execute(text("ALTER TABLE runs ADD COLUMN colour TEXT"))
    connection.execute(text("CREATE TABLE colours (name TEXT PRIMARY KEY)"))
    connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    row = {"from": usable_from, "at": NOW}
    connection.execute(text("INSERT INTO schema_upgrades VALUES ('9999', :from, :at, '9.9.9')"), row)


def test_a_newer_database_is_used_if_it_says_so(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    first = open_store()
    first.writer.submit(upgraded_by_the_next_version, usable_from=head_revision()).result()
    first.close()
    second = open_store()
    assert "schema revision 9999 (by atoll 9.9.9" in caplog.text
    second.writer.submit(runs.add, run()).result()
    assert open_store(primary=False).reader.submit(runs.get, RUN).result() == run()
    kept = second.reader.submit(lambda c: c.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
    assert kept.result() == "9999"


def test_a_database_that_is_newer_by_two_versions_is_refused(open_store: OpenStore) -> None:
    first = open_store()
    first.writer.submit(upgraded_by_the_next_version, usable_from="9998").result()
    first.close()
    for primary in (True, False):
        with pytest.raises(SchemaError) as refused:
            open_store(primary=primary)
        assert "revision 9999 (by atoll 9.9.9, 20" in refused.value.detail.message
        assert f"newer than the {head_revision()} of this atoll 0." in refused.value.detail.message
        assert "servers from revision 9998 on may use it" in refused.value.detail.message
        assert refused.value.detail.remedy.startswith("start atoll 9.9.9 or a later one; or restore")


def test_a_newer_database_is_not_copied(open_store: OpenStore) -> None:
    store = open_store()
    store.writer.submit(upgraded_by_the_next_version, usable_from=head_revision()).result()
    with pytest.raises(SchemaError, match="leave out what is new") as refused:
        require_known(store.writer._engine)
    assert refused.value.detail.remedy == "use the command of atoll 9.9.9"


@pytest.mark.parametrize("others", [0, 2])
def test_an_upgrade_locks_out_no_server_that_stands_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    engine = writer_engine(sqlite_url(tmp_path / "x.sqlite3"))
    with engine.begin() as connection:
        migrate(connection, schema_version.revisions()[-2])
    monkeypatch.setattr(compatibility, "USABLE_FROM", {head_revision(): head_revision()})
    if others:
        with pytest.raises(SchemaError, match=f"from revision {head_revision()} on .* 2 that may be older") as refused:
            upgrade(engine, others=lambda _: others)
        assert "one release at a time" in refused.value.detail.remedy
    else:
        upgrade(engine, others=lambda _: others)
        require_usable(engine)
    engine.dispose()


def test_an_upgrade_that_locks_no_server_out_is_made_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = writer_engine(sqlite_url(tmp_path / "x.sqlite3"))
    before = schema_version.revisions()[-2]
    with engine.begin() as connection:
        migrate(connection, before)
    monkeypatch.setattr(compatibility, "USABLE_FROM", {head_revision(): before})
    upgrade(engine, others=lambda _: 2)
    with engine.connect() as connection:
        noted = schema_upgrades.find(connection, head_revision())
    assert (noted.usable_from, noted.by) == (before, atoll.server.__version__)
    engine.dispose()


def test_tables_of_another_program_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "atoll.sqlite3") as connection:
        connection.execute("CREATE TABLE runs (x)")
    connection.close()
    with pytest.raises(SchemaError, match="did not make: runs"):
        Store.open(tmp_path)


def test_a_second_process_needs_the_schema(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no database .*atoll\.sqlite3 yet") as refused:
        Store.open(tmp_path, primary=False)
    assert "main server process first" in refused.value.detail.remedy
    (tmp_path / "atoll.sqlite3").touch()
    with pytest.raises(SchemaError, match=f"at schema revision none, this program needs {head_revision()}"):
        Store.open(tmp_path, primary=False)


def test_an_upgrade_that_fails_leaves_nothing(tmp_path: Path) -> None:
    engine = writer_engine(sqlite_url(tmp_path / "x.sqlite3"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ix_runs_created_at (x INTEGER)"))  # the name of an index to be made
    with pytest.raises(Exception, match="ix_runs_created_at"):
        upgrade(engine)
    with engine.begin() as connection:
        names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
    assert names == ["ix_runs_created_at"]
    engine.dispose()


def test_servers_that_start_at_once_upgrade_once(tmp_path: Path, database_url: str | None) -> None:
    url = sqlite_url(tmp_path / "x.sqlite3") if database_url is None else parse_url(database_url)
    failures: list[BaseException] = []

    def start() -> None:
        engine = writer_engine(url)
        try:
            upgrade(engine)
            require_usable(engine)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)
        engine.dispose()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failures == []


def test_a_new_database_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    engine = writer_engine(sqlite_url(path))
    release = threading.Timer(0.2, other.execute, ["COMMIT"])
    release.start()
    upgrade(engine)
    require_usable(engine)
    engine.dispose()
    release.join()
    other.close()


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "", "postgresql"])
def test_other_databases_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SchemaError, match="database") as refused:
        Store.open(tmp_path, url=url)
    assert "postgresql://" in refused.value.detail.remedy
