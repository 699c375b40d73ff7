"""Bringing a database to the schema of this version, and refusing one that is newer."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.stores import dialects, schema
from atoll.server.stores.errors import SchemaError


def head_revision() -> str:
    """The newest revision that this version knows."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise SchemaError("this installation has no schema revisions", "install atoll again")
    return head


def is_known(revision: str) -> bool:
    """Whether this version knows a revision, and so can bring a database of it to the newest."""
    return revision in {known.revision for known in ScriptDirectory.from_config(_config()).walk_revisions()}


def upgrade(engine: Engine) -> None:
    """Create the tables, or bring them to the newest revision, in one transaction; check the database for damage first.

    Raises:
        SchemaError: if the database is newer than this code, or holds tables that are not Atoll's.
        StoreDamagedError: if it is damaged.
        StoreUnavailableError: if it cannot be opened or written.
    """
    try:
        with engine.connect() as connection, connection.begin():
            dialects.lock_schema(connection)
            dialects.check_database(connection)
            if _known_revision(connection) != head_revision():
                config = _config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error


def require_current(engine: Engine) -> None:
    """Check that the database is at the newest revision: for processes beside the one that upgrades.

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
    """Write what is there already: a transaction that ends well shows that the database can be written."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))


def _known_revision(connection: Connection) -> str | None:
    """The database's revision, None if it is empty."""
    current = MigrationContext.configure(connection).get_current_revision()
    script = ScriptDirectory.from_config(_config())
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        raise SchemaError(
            f"the database is at schema revision {current}, newer than the {script.get_current_head()} of this program",
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


def _config() -> Config:
    config = Config()
    location = str(files("atoll.server.stores.migrations"))
    config.set_main_option("script_location", location.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
