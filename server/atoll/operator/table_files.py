"""Write tables to files: CSV with the standard library, Parquet with pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import csv
import importlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator.errors import BadInputError
from atoll.operator.tables import text_cells, unformulaic
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.operator.tables import Table


def write_csv(table: Table, path: Path) -> None:
    """Write RFC 4180 CSV in UTF-8, atomically.

    Text that a spreadsheet would run as a formula gets an apostrophe before it.

    Raises:
        BadInputError: if the file cannot be written.
    """
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(map(unformulaic, table.columns))
        rows.writerows(text_cells(table))


def write_parquet(table: Table, path: Path) -> None:
    """Write Parquet atomically.

    Raises:
        BadInputError: if the file cannot be written.
        ImportError: if pyarrow is not installed.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"Parquet needs pyarrow: {install_hint('parquet')}", name="pyarrow") from error
    schema = arrow.schema([(name, getattr(arrow, _ARROW[dtype])()) for name, dtype in table.columns.items()])
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    with replacing(path) as temporary:
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), temporary)


_ARROW = {"int64": "int64", "float64": "float64", "string": "string", "bool": "bool_"}
WRITERS: dict[str, Callable[[Table, Path], None]] = {".csv": write_csv, ".parquet": write_parquet}
"""Writers by file extension."""


def writer_for(path: Path) -> Callable[[Table, Path], None]:
    """The writer for a file, by its extension.

    Raises:
        BadInputError: for another extension.
    """
    found = WRITERS.get(path.suffix.lower())
    if found is None:
        raise BadInputError(
            f"{path} has the ending {path.suffix!r}; known are {' and '.join(WRITERS)}", "choose one of these endings"
        )
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces ``path`` at the end; removed after an error.

    Raises:
        BadInputError: if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
