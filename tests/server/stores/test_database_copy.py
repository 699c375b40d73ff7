"""A copy of a database has the same rows, byte for byte, in either direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, text

from atoll.server.stores import StoreDamagedError, database_copy, dialects, schema_version
from atoll.server.stores.schema import metadata

NUMBERS = '{"b":1,"a":1e-300,"loss":0.1}'
ROWS: dict[str, dict[str, Any]] = {
    "runs": {"seed": -(2**63), "layout": bytes(range(256)), "best_value": 0.1 + 0.2, "keep_models": None},
    "events": {"seq": 2**62, "body": '{"text":"ß \\u0007 \U0001f600"}'},
    "reports": {"counted": True, "metrics": NUMBERS, "claimed_s": "{}"},
    "participant_history": {"online_s": "[1,2.5]"},
}
"""Values that a conversion could change, by table; the other columns get something of their type."""


def engine_of(kind: str, path: Path, url: str) -> Engine:
    return dialects.writer_engine(dialects.sqlite_url(path) if kind == "sqlite" else dialects.parse_url(url))


def filled(engine: Engine) -> None:
    """One row in each table, in the order of their references."""
    schema_version.upgrade(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            row = {column.name: _sample(column.name, str(column.type)) for column in table.columns}
            row |= ROWS.get(table.name, {})
            names = ", ".join(row)
            connection.execute(text(f"INSERT INTO {table.name} ({names}) VALUES (:{', :'.join(row)})"), row)  # noqa: S608  # our names


def _sample(name: str, kind: str) -> object:
    if kind in {"DOUBLE", "DOUBLE_PRECISION"}:
        return 1_800_000_000.123456
    if kind in {"INTEGER", "BIGINT"}:
        return 7
    return "x" if name not in {"kind", "role"} else "edge" if name == "kind" else "operator"


def raw(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    def rows(table: Table) -> list[tuple[object, ...]]:
        return [tuple(row) for row in connection.execute(text(f"SELECT * FROM {table.name}"))]  # noqa: S608  # our names

    return {table.name: rows(table) for table in metadata.sorted_tables}


def assert_same(left: dict[str, list[tuple[object, ...]]], right: dict[str, list[tuple[object, ...]]]) -> None:
    assert set(left) == set(right) == set(metadata.tables)
    for name, rows in left.items():
        assert rows, name
        assert rows == right[name], name


@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgresql"), ("postgresql", "sqlite")])
def test_rows_arrive_as_they_are_stored(tmp_path: Path, postgresql_url: str, source: str, target: str) -> None:
    left = engine_of(source, tmp_path / "left.sqlite3", postgresql_url)
    right = engine_of(target, tmp_path / "right.sqlite3", postgresql_url)
    filled(left)
    schema_version.upgrade(right)
    with left.begin() as reading, right.begin() as writing:
        counts = database_copy.copy_rows(reading, writing)
    assert counts == dict.fromkeys(counts, 1)
    with left.begin() as one, right.begin() as other:
        assert_same(raw(one), raw(other))
    left.dispose()
    right.dispose()


def test_rows_of_someone_else_in_the_target_are_noticed(tmp_path: Path) -> None:
    left, right = (dialects.writer_engine(dialects.sqlite_url(tmp_path / name)) for name in ("left", "right"))
    filled(left)
    filled(right)
    with right.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            if table.name != "tokens":
                connection.execute(text(f"DELETE FROM {table.name}"))  # noqa: S608  # our names
    with left.begin() as connection:
        connection.execute(text("DELETE FROM tokens"))
    with left.begin() as reading, right.begin() as writing, pytest.raises(StoreDamagedError, match="1 of 0 rows"):
        database_copy.copy_rows(reading, writing)
    left.dispose()
    right.dispose()
