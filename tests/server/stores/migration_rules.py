"""Judges Alembic's operations: a migration must let servers of the previous release continue to use the database.

CONTRIBUTING.md states the rules. A migration is played against a recorder, which executes nothing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from unittest import mock

from alembic.migration import MigrationContext
from alembic.operations import MigrateOperation, Operations, ops
from alembic.operations.base import AbstractOperations
from sqlalchemy import Column
from sqlalchemy.types import TypeEngine

_FILLED = re.compile(r"\s*INSERT INTO (\w+)", re.IGNORECASE)
_CHANGED = re.compile(r"\s*UPDATE (\w+) SET (\w+) = [^,]*$", re.IGNORECASE | re.DOTALL)
_RELAXING = (ops.DropIndexOp, ops.DropConstraintOp)
_CONSTRAINING = (
    ops.CreateUniqueConstraintOp,
    ops.CreateForeignKeyOp,
    ops.CreateCheckConstraintOp,
    ops.CreatePrimaryKeyOp,
)


def operations_of(upgrade: Callable[[], None]) -> list[MigrateOperation]:
    """The operations of a migration's ``upgrade``, in their order."""
    done: list[MigrateOperation] = []

    invoke = AbstractOperations.invoke

    def recorded(self: AbstractOperations, operation: MigrateOperation) -> object:
        done.append(operation)
        return invoke(self, operation)

    options = {"as_sql": True, "output_buffer": io.StringIO()}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    with Operations.context(context), mock.patch.object(AbstractOperations, "invoke", recorded):
        upgrade()
    return done


@dataclass
class Rules:
    """Judges the operations of one migration.

    Attributes:
        droppable: names (``table`` or ``table.column``) that are unused by every server which may use the database
            afterwards.
        tables: tables that the migration has created so far.
        columns: columns that it has added so far.
    """

    droppable: frozenset[str] = frozenset()
    tables: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)

    def violations(self, operations: list[MigrateOperation]) -> list[str]:
        """Operations that would break servers of the previous release; empty if the migration is allowed."""
        return [found for operation in operations for found in self._judge(operation)]

    def _judge(self, operation: MigrateOperation) -> Iterator[str]:
        match operation:
            case ops.CreateTableOp() | ops.AddColumnOp() | ops.CreateIndexOp():
                yield from self._judge_addition(operation)
            case ops.DropTableOp():
                yield from self._dropped(operation.table_name)
            case ops.DropColumnOp():
                yield from self._dropped(f"{operation.table_name}.{operation.column_name}")
            case ops.AlterColumnOp():
                yield from _altered(operation)
            case ops.ExecuteSQLOp():
                yield from self._executed(str(operation.sqltext))
            case _ if isinstance(operation, _CONSTRAINING):
                if str(getattr(operation, "table_name", getattr(operation, "source_table", ""))) not in self.tables:
                    yield f"{type(operation).__name__}: a constraint refuses rows that servers before would write"
            case _ if not isinstance(operation, _RELAXING):
                yield f"{type(operation).__name__}: tell migration_rules.py whether servers before can bear it"

    def _judge_addition(self, operation: ops.CreateTableOp | ops.AddColumnOp | ops.CreateIndexOp) -> Iterator[str]:
        match operation:
            case ops.CreateTableOp():
                self.tables.add(operation.table_name)
            case ops.AddColumnOp():
                yield from self._added(operation.table_name, operation.column)
            case ops.CreateIndexOp():
                if operation.unique and str(operation.table_name) not in self.tables:
                    yield f"{operation.table_name}: a unique index refuses rows that servers before would write"

    def _added(self, table: str, column: Column[TypeEngine[object]]) -> Iterator[str]:
        name = f"{table}.{column.name}"
        self.columns.add(name)
        if table not in self.tables and not column.nullable and column.server_default is None:
            yield f"{name}: give it nullable=True or a server_default: servers before write rows without it"

    def _dropped(self, name: str) -> Iterator[str]:
        if name not in self.droppable:
            yield f"{name}: retire it in one release (compatibility.RETIRED), and drop it in the next one"

    def _executed(self, statement: str) -> Iterator[str]:
        filled, changed = _FILLED.match(statement), _CHANGED.match(statement)
        if filled and filled[1] in self.tables:
            return
        if changed and (changed[1] in self.tables or f"{changed[1]}.{changed[2]}" in self.columns):
            return
        yield f"{statement.strip()[:60]!r}: only what this migration adds may be filled"


def _altered(operation: ops.AlterColumnOp) -> Iterator[str]:
    name = f"{operation.table_name}.{operation.column_name}"
    if operation.modify_name is not None or operation.modify_type is not None:
        yield f"{name}: add a new column, write both for one release, then retire this one"
    if operation.modify_nullable is False:
        yield f"{name}: servers before write rows in which it is null"
    if operation.modify_server_default is None:
        yield f"{name}: servers before rely on its server_default"


def droppable(retired: Mapping[str, str], usable_from: str) -> frozenset[str]:
    """The names that a migration may drop if servers from ``usable_from`` on use the database afterwards."""
    return frozenset(name for name, since in retired.items() if since <= usable_from)
