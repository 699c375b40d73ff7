"""Create a database in the schema of this version, or upgrade it; refuse a newer one.

An empty database gets the tables of ``schema`` at once: to play all revisions would give the same
(``test_schema_version``) and load Alembic, which takes a quarter of a second.
"""

from __future__ import annotations

import re
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

from atoll.server.stores import dialects, schema
from atoll.server.stores.errors import SchemaError

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATIONS = "atoll.server.stores.migrations"
_SCRIPT = re.compile(r"r(\d{4})_\w+\.py")
_noted = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Where Alembic notes the revision of a database."""


@cache
def revisions() -> tuple[str, ...]:
    """All revisions that this version knows, oldest first; read from file names, without loading Alembic.

    Raises:
        SchemaError: if there is none.
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


def upgrade(engine: Engine) -> None:
    """Check the database for damage, then create or upgrade its tables in one transaction.

    Raises:
        SchemaError: if the database is newer than this code, or holds tables that are not Atoll's.
        StoreDamagedError: if it is damaged.
        StoreUnavailableError: if it cannot be opened or written.
    """
    try:
        with engine.connect() as connection, connection.begin():
            dialects.lock_schema(connection)
            dialects.check_database(connection)
            current = _known_revision(connection)
            if current is None:
                _create(connection)
            elif current != head_revision():
                _migrate(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error


def is_empty(engine: Engine) -> bool:
    """Whether no table of Atoll's exists in a database, or none has a row.

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


def require_current(engine: Engine) -> None:
    """Check that the database is at the newest revision; for processes other than the one that upgrades.

    Raises:
        SchemaError: if it is not.
        StoreUnavailableError: if it cannot be opened.
    """
    try:
        with engine.connect() as connection, connection.begin():
            current = _known_revision(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error
    if current != head_revision():
        raise SchemaError(
            f"the database is at schema revision {current or 'none'}, this program needs {head_revision()}",
            "start the main server process first: it upgrades the database",
        )


def touch(connection: Connection) -> None:
    """Rewrite an existing value: if the transaction succeeds, the database can be written."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))


def _known_revision(connection: Connection) -> str | None:
    """The database's revision, None if it is empty."""
    current = _current_revision(connection)
    if current is not None and not is_known(current):
        raise SchemaError(
            f"the database is at schema revision {current}, newer than the {head_revision()} of this program",
            "run the version of atoll that last used this database, or a later one",
        )
    if current is None:
        foreign = sorted(set(inspect(connection).get_table_names()) & set(schema.metadata.tables))
        if foreign:
            raise SchemaError(
                f"the database has tables that atoll did not make: {', '.join(foreign)}",
                "give atoll a database of its own",
            )
    return current


def _current_revision(connection: Connection) -> str | None:
    """The revision that Alembic recorded."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    noted: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return noted


def _create(connection: Connection) -> None:
    """Make every table in an empty database, and note the revision as Alembic does."""
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
