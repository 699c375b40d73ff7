"""The checks of ``atoll doctor`` for a database on a database server; SQLite is checked with the data directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator.errors import OperatorError
from atoll.server.cli.checks import CLOCK_FAIL_S, CLOCK_WARN_S, Finding, Status
from atoll.server.cli.errors import local_errors

if TYPE_CHECKING:
    from sqlalchemy import URL

    from atoll.server.stores.schema_upgrades import SchemaUpgrade

_CHECK, _SCHEMA = "database", "schema"
_DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}
"""PostgreSQL settings that decide whether a crash can lose acknowledged data, with their safe values."""


def database_server(data: Path, wanted: URL | None = None) -> Iterator[Finding]:
    """Check that a data directory's database server answers, and does not lose acknowledged data.

    Args:
        data: the data directory.
        wanted: the database in the settings; None for the directory's.
    """
    from atoll.server.stores import database_place  # noqa: PLC0415 - imports SQLAlchemy: half a second

    try:
        with local_errors():
            place = database_place.choose(data, wanted)
            if place.get_backend_name() != "sqlite":
                yield from _answers(place)
    except OperatorError as error:
        yield Finding(_CHECK, Status.FAIL, error.message, error.remedy)


def schema(data: Path, wanted: URL | None = None) -> Iterator[Finding]:
    """Compare the schema of a data directory's database, which must answer, with this version.

    Arguments as for ``database_server``.
    """
    from atoll.server.stores import database_place, dialects, schema_version  # noqa: PLC0415 - as above

    try:
        with local_errors():
            there = database_place.find(data)
            place = there or wanted
            if place is None:
                return
            engine = dialects.reader_engine(place, connections=1)
            try:
                found = schema_version.found_at(engine)
                yield _first_start(found) if there is None else _compared(found)
            finally:
                engine.dispose()
    except OperatorError as error:
        yield Finding(_SCHEMA, Status.FAIL, error.message, error.remedy)


def _first_start(found: SchemaUpgrade | None) -> Finding:
    if found is None:
        return Finding(_SCHEMA, Status.OK, "the database is empty; the first start creates its tables")
    words = f"{found}, of a federation that this data directory is not part of"
    remedy = "choose an empty database; or make the directory with `atoll server standby`, or name the right --data"
    return Finding(_SCHEMA, Status.FAIL, words, remedy)


def _compared(found: SchemaUpgrade | None) -> Finding:
    from atoll.server.stores import schema_version  # noqa: PLC0415 - as above
    from atoll.server.stores.migrations.compatibility import usable_from  # noqa: PLC0415 - as above

    head = schema_version.head_revision()
    if found is None:
        words = f"the database has no tables of atoll, this version needs revision {head}"
        return Finding(_SCHEMA, Status.FAIL, words, "restore it from its backup; or name the right --data")
    if schema_version.is_older(found.revision):
        words = f"{found}; the next start upgrades it to {head}, which servers from {usable_from(head)} on can use"
        return Finding(_SCHEMA, Status.OK, words)
    if found.revision != head:
        words = f"{schema_version.newer_words(found)}, which can use it"
        return Finding(_SCHEMA, Status.WARN, words, "make backups with the newer version, or upgrade this one too")
    return Finding(_SCHEMA, Status.OK, str(found))


def _answers(place: URL) -> Iterator[Finding]:
    from sqlalchemy import text  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    from atoll.server.stores import database_clock, dialects  # noqa: PLC0415 - as above

    engine = dialects.reader_engine(place, connections=1)
    try:
        with engine.connect() as connection:
            skew = database_clock.skew(connection)
            version = connection.execute(text("SHOW server_version")).scalar_one()
            found = {name: str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in _DURABLE}
    except SQLAlchemyError as error:
        raise dialects.translate(error, place) from error
    finally:
        engine.dispose()
    unsafe = [f"{name} = {value}" for name, value in found.items() if value not in _DURABLE[name]]
    if unsafe:
        words = f"PostgreSQL {version} runs with {', '.join(unsafe)}: a crash can lose what it acknowledged"
        yield Finding(_CHECK, Status.FAIL, words, f"set {', '.join(one.partition(' ')[0] for one in unsafe)} to on")
    else:
        yield Finding(_CHECK, Status.OK, f"{dialects.shown(place)}, PostgreSQL {version}")
    if skew is not None and skew.least_s >= CLOCK_WARN_S:
        status = Status.FAIL if skew.least_s >= CLOCK_FAIL_S else Status.WARN
        yield Finding("clock", status, str(skew), database_clock.REMEDY)
