"""The table that a simulation's commit adds to the server's tables: a few named values."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, Text, inspect, select

from atoll.server.stores import dialects
from atoll.simulation.attendance import Attended
from atoll.simulation.resuming.tasks_in_work import TasksInWork, tasks_from, tasks_to
from atoll.simulation.tasks import Facts

_KEPT = Table("simulation", MetaData(), Column("name", Text, primary_key=True), Column("content", LargeBinary))
_ASKED, _FACTS, _BOUNDARY, _TASKS = "asked", "facts", "boundary", "tasks"
_HEAD = "head"


@dataclass(frozen=True)
class Boundary:
    """The instant of a commit: a round is open but has no invitations yet, or the run has ended.

    Attributes:
        number: of the commit, from 1.
        run: the run's id.
        second: the virtual second.
        seconds: real duration of the simulation so far, over all its processes.
        ended: whether the run has ended or is paused.
        attended: the connected participants.
    """

    number: int
    run: str
    second: float
    seconds: float
    ended: bool
    attended: Attended


@dataclass(frozen=True)
class KeptState:
    """A folder's last commit.

    Attributes:
        asked: the request.
        facts: the participants' declarations.
        boundary: the instant.
        tasks: the participants' running tasks.
    """

    asked: Mapping[str, Any]
    facts: Sequence[Facts]
    boundary: Boundary
    tasks: TasksInWork


def put_begin(connection: Connection, asked: Mapping[str, Any], facts: Sequence[Facts]) -> None:
    """Store the constant part: the request and the participants' declarations, in the population's order."""
    _KEPT.create(connection, checkfirst=True)
    _put(connection, _ASKED, json.dumps(asked).encode())
    examples = np.array([one.examples for one in facts], np.int64)
    can_evaluate = np.array([one.can_evaluate for one in facts], np.bool_)
    _put(connection, _FACTS, _packed({}, {"examples": examples, "can_evaluate": can_evaluate}))


def put_boundary(connection: Connection, boundary: Boundary, tasks: TasksInWork) -> None:
    """Store the instant of a commit with the running tasks, in its transaction."""
    attended = boundary.attended
    head: dict[str, Any] = {
        "number": boundary.number,
        "run": boundary.run,
        "second": boundary.second,
        "seconds": boundary.seconds,
        "ended": boundary.ended,
        "changes": attended.changes,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "numbers": attended.numbers,
        "counted_from": attended.counted_from,
        "away": attended.away,
        "back_at": attended.back_at,
    }
    _put(connection, _BOUNDARY, _packed(head, arrays))
    _put(connection, _TASKS, json.dumps(tasks_to(tasks)).encode())


def kept_state(connection: Connection, model_path: Callable[[str], Path]) -> KeptState | None:
    """The last commit, with models in the files of ``model_path``; None if there is none yet."""
    if not inspect(connection).has_table(_KEPT.name):
        return None
    found = {row.name: row.content for row in connection.execute(select(_KEPT))}
    if _BOUNDARY not in found:
        return None
    _, facts = _unpacked(found[_FACTS])
    head, arrays = _unpacked(found[_BOUNDARY])
    attended = Attended(changes=head.pop("changes"), **arrays)
    declared = zip(facts["examples"].tolist(), facts["can_evaluate"].tolist(), strict=True)
    return KeptState(
        json.loads(found[_ASKED]),
        [Facts(*one) for one in declared],
        Boundary(attended=attended, **head),
        tasks_from(json.loads(found[_TASKS]), model_path),
    )


def _put(connection: Connection, name: str, content: bytes) -> None:
    dialects.upsert(connection, _KEPT, [{"name": name, "content": content}])


def _packed(head: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(head).encode(), np.uint8)
    np.savez(file, allow_pickle=False, **{_HEAD: text, **arrays})
    return file.getvalue()


def _unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    return json.loads(arrays.pop(_HEAD).tobytes()), arrays
