"""Creates or upgrades a database to this version's schema; refuses one that this version must not use.

A newer database is used unchanged if its record allows servers of this version (``migrations.compatibility``). An empty
database gets the tables of ``schema`` directly: applying all revisions would give the same result
(``test_schema_version``), but loads Alembic, which takes a quarter of a second.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    literal,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

import atoll.server
from atoll.server.stores import dialects, schema, schema_upgrades
from atoll.server.stores.errors import SchemaError
from atoll.server.stores.migrations import compatibility
from atoll.server.stores.schema_upgrades import SchemaUpgrade

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

_MIGRATIONS = "atoll.server.stores.migrations"
_SCRIPT = re.compile(r"r(\d{4})_\w+\.py")
_noted = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's table with the revision of the database."""


@cache
def revisions() -> tuple[str, ...]:
    """All revisions that this version knows, oldest first, read from file names without loading Alembic.

    Raises:
        SchemaError: if there are none.
    """
    scripts = (_SCRIPT.fullmatch(entry.name) for entry in files(_MIGRATIONS).joinpath("versions").iterdir())
    found = tuple(sorted(script[1] for script in scripts if script))
    if not found:
        raise SchemaError("this installation has no schema revisions", "install atoll again")
    return found


def head_revision() -> str:
    """The newest revision that this version knows."""
    return revisions()[-1]


def is_known(revision: str) -> bool:
    """Whether this version knows a revision, and can therefore upgrade a database from it."""
    return revision in revisions()


def upgrade(engine: Engine, *, others: Callable[[Connection], int] | None = None) -> None:
    """Check the database for damage, then create or upgrade its tables in one transaction.

    Args:
        engine: of the writer.
        others: counts the standbys at the database; None if there can be none.

    Raises:
        SchemaError: if the database is newer and does not allow this version, the upgrade would lock out a standby, or
            it has tables that are not Atoll's.
        StoreDamagedError: if it is damaged.
        StoreUnavailableError: if it cannot be opened or written.
    """
    try:
        with engine.connect() as connection, connection.begin():
            dialects.lock_schema(connection)
            dialects.check_database(connection)
            found = _usable_revision(connection)
            if found is None:
                _create(connection)
            elif is_older(found.revision):
                if others is not None and _locks_out(found.revision):
                    _refuse_to_lock_out(found, others(connection))
                _migrate(connection)
                log.info("the database is now at schema revision %s; it was at %s", head_revision(), found.revision)
            elif found.revision != head_revision():
                log.warning("%s; this server goes on with it", newer_words(found))
                return
            schema_upgrades.note(connection, head_revision())
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error


def is_empty(engine: Engine) -> bool:
    """Whether a database has none of Atoll's tables, or no rows in them.

    Raises:
        StoreUnavailableError: if it cannot be opened.
    """
    try:
        with engine.connect() as connection, connection.begin():
            there = set(inspect(connection).get_table_names())
            ours = [table for table in schema.metadata.tables.values() if table.name in there]
            return not any(connection.execute(select(literal(1)).select_from(table).limit(1)).first() for table in ours)
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error


def found_at(engine: Engine) -> SchemaUpgrade | None:
    """The revision of a database that this version may use or upgrade; None if the database is empty.

    Raises:
        SchemaError: if this version must not use it.
        StoreUnavailableError: if it cannot be opened.
    """
    try:
        with engine.connect() as connection, connection.begin():
            return _usable_revision(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error


def require_usable(engine: Engine) -> None:
    """Check that this version can use the database unchanged; for processes that do not upgrade it.

    Raises:
        SchemaError: if it cannot.
        StoreUnavailableError: if it cannot be opened.
    """
    found = found_at(engine)
    if found is None or is_older(found.revision):
        raise SchemaError(
            f"the database is at schema revision {found.revision if found else 'none'}, this program needs "
            f"{head_revision()}",
            "start the main server process first: it upgrades the database",
        )


def require_known(engine: Engine) -> None:
    """Check that this version knows the whole schema of the database; a copy would leave out the rest.

    Raises:
        SchemaError: if it does not know all of it, or must not use the database.
        StoreUnavailableError: if it cannot be opened.
    """
    found = found_at(engine)
    if found is not None and not is_known(found.revision):
        raise SchemaError(
            f"{newer_words(found)}; a copy by it would leave out what is new",
            f"use the command of atoll {found.by or 'of the version that last upgraded this database'}",
        )


def require_allowed(connection: Connection) -> None:
    """Check that this version may use the database, now or after an upgrade.

    Raises:
        SchemaError: if it must not.
        SQLAlchemyError: if the database cannot be read.
    """
    _usable_revision(connection)


def is_older(revision: str) -> bool:
    """Whether a revision is older than this version's newest."""
    return is_known(revision) and revision != head_revision()


def newer_words(found: SchemaUpgrade) -> str:
    """The error or warning for a database that is newer than this version."""
    return f"the database is at {found}, newer than the {head_revision()} of this atoll {atoll.server.__version__}"


def touch(connection: Connection) -> None:
    """Rewrite an existing value to check that the database can be written."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))


def _usable_revision(connection: Connection) -> SchemaUpgrade | None:
    """The database's revision; None if it is empty."""
    current = _current_revision(connection)
    if current is None:
        foreign = sorted(set(inspect(connection).get_table_names()) & set(schema.metadata.tables))
        if foreign:
            raise SchemaError(
                f"the database has tables that atoll did not make: {', '.join(foreign)}",
                "give atoll a database of its own",
            )
        return None
    found = schema_upgrades.find(connection, current)
    if not is_known(current) and not is_known(found.usable_from):
        needed = f"servers from revision {found.usable_from} on may use it" if found.by else "it does not say more"
        raise SchemaError(
            f"{newer_words(found)}; {needed}",
            f"start atoll {found.by or 'in the version that last used this database'} or a later one; or restore the "
            "backup from before the upgrade",
        )
    return found


def _locks_out(revision: str) -> bool:
    """Whether an upgrade by this version would lock out servers of a revision."""
    return compatibility.usable_from(head_revision()) not in revisions()[: revisions().index(revision) + 1]


def _refuse_to_lock_out(found: SchemaUpgrade, others: int) -> None:
    """Refuse an upgrade that would lock out standbys, which must be able to take over."""
    if others:
        oldest = compatibility.usable_from(head_revision())
        raise SchemaError(
            f"the database is at {found}; servers from revision {oldest} on can use it after the upgrade to "
            f"{head_revision()} by atoll {atoll.server.__version__}, and {others} that may be older stand by",
            "upgrade by one release at a time; or stop the servers that stand by, and start this one before them",
        )


def _current_revision(connection: Connection) -> str | None:
    """The revision that Alembic recorded."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    noted: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return noted


def _create(connection: Connection) -> None:
    """Create every table in an empty database, and record the revision as Alembic does."""
    schema.metadata.create_all(connection, checkfirst=False)
    _noted.create(connection, checkfirst=True)
    connection.execute(_noted.insert().values(version_num=head_revision()))


def _migrate(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - takes a quarter of a second; most starts find nothing to upgrade

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    location = str(files(_MIGRATIONS))
    config.set_main_option("script_location", location.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
