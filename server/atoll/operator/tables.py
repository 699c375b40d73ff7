"""A run's rounds, or their participants, as a table with documented columns and types.

docs/exports.md documents every column. Each metric is a float64 column after the fixed columns. An unknown value is
None: an empty cell in CSV, null in Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atoll.operator.errors import BadInputError
from atoll.server.control import PHASES, MemberSummary, RoundSummary

Dtype = Literal["int64", "float64", "string", "bool"]
Cell = int | float | str | bool | None

_ATTEMPT: dict[str, Dtype] = {
    "round": "int64",
    "attempt": "int64",
    "kind": "string",
    "phase": "string",
    "version": "int64",
}
_ROUND: dict[str, Dtype] = {
    "reason": "string",
    "cohort": "int64",
    "reported": "int64",
    "quorum": "int64",
    "wanted": "int64",
    "total_weight": "int64",
    "fragment": "int64",
    "fragments": "int64",
    "created_at": "float64",
    "opened_at": "float64",
    "closed_at": "float64",
    "duration_s": "float64",
}
_MEMBER: dict[str, Dtype] = {
    "participant": "string",
    "organisation": "string",
    "status": "string",
    "detail": "string",
    "counted": "bool",
    "weight": "int64",
    "payload_bytes": "int64",
    "accept_s": "float64",
    "upload_s": "float64",
    "report_s": "float64",
    "fold_s": "float64",
    "end_s": "float64",
}
_CLAIMED = ("download", "evaluate", "fit", "upload")
PHASES_S: Mapping[str, Dtype] = {f"{phase}_s": "float64" for phase in PHASES}
"""Columns with the seconds of each phase of a round."""
_CLAIMED_S: dict[str, Dtype] = {f"claimed_{step}_s": "float64" for step in _CLAIMED}
ROUND_COLUMNS: Mapping[str, Dtype] = {**_ATTEMPT, **_ROUND, **PHASES_S}
"""Columns of a table of rounds, before the metrics."""
PARTICIPANT_COLUMNS: Mapping[str, Dtype] = {**_ATTEMPT, **_MEMBER, **_CLAIMED_S}
"""Columns of a table of participants, before the metrics."""


@dataclass(frozen=True)
class Table:
    """Rows with typed columns.

    Attributes:
        columns: dtypes by name, in the order of the cells.
        rows: cells of every row.
    """

    columns: Mapping[str, Dtype]
    rows: tuple[tuple[Cell, ...], ...]

    def records(self) -> list[dict[str, Cell]]:
        """Each row as a mapping."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def round_table(rounds: Sequence[RoundSummary]) -> Table:
    """A row for each attempt at a round."""
    return _table(ROUND_COLUMNS, ((_round_cells(one), one.metrics) for one in rounds))


def participant_table(rounds: Sequence[RoundSummary]) -> Table:
    """A row for each participant of each attempt at a round.

    Raises:
        BadInputError: if the rounds lack their members.
    """
    if any(one.cohort for one in rounds) and not any(one.members for one in rounds):
        raise BadInputError(
            "this history was fetched without participants",
            "use run.history(members=True), or for a simulation History(result.detail())",
        )
    return _table(
        PARTICIPANT_COLUMNS,
        ((_member_cells(one, member), member.metrics) for one in rounds for member in one.members),
    )


def _table(fixed: Mapping[str, Dtype], rows: Iterable[tuple[list[Cell], Mapping[str, float]]]) -> Table:
    found = list(rows)
    metrics = sorted({name for _, values in found for name in values})
    measured: dict[str, Dtype] = {_column(name, fixed): "float64" for name in metrics}
    return Table({**fixed, **measured}, tuple((*cells, *map(values.get, metrics)) for cells, values in found))


def _column(metric: str, fixed: Mapping[str, Dtype]) -> str:
    """The column of a metric; participants choose metric names, which must not replace a fixed column."""
    return f"metric/{metric}" if metric in fixed or metric.startswith("metric/") else metric


def _round_cells(one: RoundSummary) -> list[Cell]:
    attributes = [getattr(one, name) for name in (*_ATTEMPT, *_ROUND)]
    return [*attributes, *map(one.phases_s.get, PHASES)]


def _member_cells(one: RoundSummary, member: MemberSummary) -> list[Cell]:
    attributes = [*(getattr(one, name) for name in _ATTEMPT), *(getattr(member, name) for name in _MEMBER)]
    return [*attributes, *map(member.claimed_s.get, _CLAIMED)]


def text_cells(table: Table) -> Iterator[list[str]]:
    """The rows as text for CSV: floats with every digit, ``true`` and ``false``, empty for None."""
    for row in table.rows:
        yield [_text(cell) for cell in row]


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return unformulaic(cell) if isinstance(cell, str) else repr(cell)


def unformulaic(text: str) -> str:
    """Text that no spreadsheet treats as a formula (CWE-1236): an apostrophe before ``=``, ``+``, ``-`` and ``@``."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text
