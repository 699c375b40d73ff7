"""Participants' behaviour in virtual time: when they are connected, how long tasks take, whether they drop out."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from blake3 import blake3

from atoll.simulation.errors import SetupError
from atoll.simulation.population import Population

Spell = tuple[float, float]
"""Virtual seconds from which and until which a participant is connected."""
Speed = float | Callable[[int, int], float]
"""Virtual seconds of a task: one number for all, or a function of participant number and round."""
Availability = Callable[[int], Sequence[Spell]]
"""The spells of a participant, by its number: in order and disjoint."""
COLUMNS = ("participant", "online_s", "offline_s")
TASK_COLUMN = "task_s"
_CONTEXT = "atoll 2026 simulation: seed, purpose, participant, round, attempt"


@dataclass(frozen=True)
class Behaviour:
    """The participants' behaviour. By default everyone is connected, takes no time and never drops out.

    Attributes:
        speed: virtual seconds from an invitation to its report.
        availability: when a participant is connected; None: always. A report waits until its participant is connected.
        dropout: probability that a participant leaves at a random moment of a task, without reporting.
        back_s: virtual seconds after which a dropped-out participant reconnects, without its work.
        seed: decides who drops out, and when.

    Raises:
        SetupError: naming a number that is out of range.
    """

    speed: Speed = 0.0
    availability: Availability | None = None
    dropout: float = 0.0
    back_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise SetupError(f"dropout = {self.dropout!r}: give a probability, from 0 to below 1")
        if not 0 < self.back_s < math.inf:
            raise SetupError(f"back_s = {self.back_s!r}: give a number of seconds above 0")
        if not callable(self.speed):
            _check_seconds(self.speed, "speed")

    @classmethod
    def of_trace(
        cls,
        path: str | Path,
        population: int | Sequence[str],
        *,
        speed: Speed = 0.0,
        dropout: float = 0.0,
        back_s: float = 300.0,
        seed: int = 0,
    ) -> Self:
        """The behaviour recorded in a trace.

        Args:
            path: a CSV file with the columns participant, online_s and offline_s, one row for each spell of a
                participant; the optional task_s has the virtual seconds of a task of the participant.
            population: the federation's; every participant must be in the trace.
            speed: as of ``Behaviour``, unless the trace has the column task_s.
            dropout: as of ``Behaviour``.
            back_s: as of ``Behaviour``.
            seed: as of ``Behaviour``.

        Raises:
            SetupError: naming the invalid line, or the missing participants.
        """
        trace = Trace.load(path, Population(population))
        timed = speed if trace.task_s is None else trace.task_s
        return cls(timed, trace.spells_of, dropout, back_s, seed)

    def task_s(self, number: int, round_number: int) -> float:
        """Virtual seconds of a task.

        Raises:
            SetupError: if ``speed`` returns an invalid value.
        """
        if not callable(self.speed):
            return self.speed
        return _check_seconds(self.speed(number, round_number), f"speed({number}, {round_number})")

    def spells_of(self, number: int) -> Sequence[Spell]:
        """When a participant is connected.

        Raises:
            SetupError: if ``availability`` returns spells that overlap or end before they begin.
        """
        if self.availability is None:
            return ((0.0, math.inf),)
        spells = tuple(self.availability(number))
        _check_spells(spells, f"availability({number})")
        return spells

    def leaves_after(self, number: int, round_number: int, attempt: int) -> float | None:
        """The share of a task after which a participant drops out; None if it does not."""
        if not self.dropout:
            return None
        first, second = _uniform(self.seed, "dropout", number, round_number, attempt)
        return second if first < self.dropout else None


class Presence:
    """The spells of all participants that are ever disconnected."""

    def __init__(self, behaviour: Behaviour, population: Population) -> None:
        self._spells: dict[int, tuple[list[float], Sequence[Spell]]] = {}
        if behaviour.availability is not None:
            for number in range(len(population)):
                spells = behaviour.spells_of(number)
                self._spells[number] = [start for start, _ in spells], spells

    @property
    def everyone_stays(self) -> bool:
        """Whether every participant is connected all the time."""
        return not self._spells

    def changes(self) -> Iterator[tuple[float, int, bool]]:
        """Each connect and disconnect: the second, the participant's number, and whether it connects; unordered."""
        for number, (_, spells) in self._spells.items():
            for start, stop in spells:
                yield start, number, True
                if stop < math.inf:
                    yield stop, number, False

    def next_there(self, number: int, at: float) -> float:
        """The first second from ``at`` on at which a participant is connected; infinity if there is none."""
        if number not in self._spells:
            return at
        starts, spells = self._spells[number]
        place = bisect_right(starts, at) - 1
        if place >= 0 and at < spells[place][1]:
            return at
        return spells[place + 1][0] if place + 1 < len(spells) else math.inf


@dataclass(frozen=True)
class Trace:
    """A recorded population: each participant's spells, and the seconds of a task by spell if they are recorded."""

    spells: Mapping[int, tuple[Spell, ...]]
    seconds: Mapping[int, float] | None

    @classmethod
    def load(cls, path: str | Path, population: Population) -> Self:
        """Read a trace. Raises as ``Behaviour.of_trace``."""
        spells: dict[int, list[Spell]] = {}
        seconds: dict[int, float] = {}
        try:
            with Path(path).open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file)
                header = tuple(rows.fieldnames or ())
                if missing := [name for name in COLUMNS if name not in header]:
                    raise SetupError(f"{path}:1: has no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
                for line, row in enumerate(rows, 2):
                    where = f"{path}:{line}"
                    number = _number_of(row["participant"], population, where)
                    spell = (_second(row["online_s"], where), _second(row["offline_s"], where))
                    spells.setdefault(number, []).append(spell)
                    if TASK_COLUMN in header:
                        seconds[number] = _check_seconds(_second(row[TASK_COLUMN], where), f"{where}: {TASK_COLUMN}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise SetupError(f"{path} cannot be read: {error}") from error
        absent = [name for number, name in enumerate(population.names) if number not in spells]
        if absent:
            raise SetupError(
                f"{path}: has no row for {len(absent)} participants, the first is {absent[0]!r}; add their spells, or "
                "lower population"
            )
        for number, found in spells.items():
            _check_spells(found, f"{path}: participant {population.names[number]!r}")
        return cls({number: tuple(found) for number, found in spells.items()}, seconds or None)

    def spells_of(self, number: int) -> Sequence[Spell]:
        """When a participant is connected."""
        return self.spells[number]

    @property
    def task_s(self) -> Callable[[int, int], float] | None:
        """Seconds of a task by participant and round, from the participant's last row; None if none are recorded."""
        seconds = self.seconds
        return None if seconds is None else lambda number, _: seconds[number]


def _number_of(name: str, population: Population, where: str) -> int:
    try:
        return population.number_of(name)
    except KeyError:
        first, last = population.names[0], population.names[-1]
        raise SetupError(
            f"{where}: participant {name!r} is not in the population, whose names are {first} to {last}"
        ) from None


def _second(text: str, where: str) -> float:
    try:
        return float(text) if text.strip() else math.inf
    except (ValueError, AttributeError):
        raise SetupError(f"{where}: {text!r} is not a number of seconds") from None


def _check_seconds(value: float, what: str) -> float:
    if not 0 <= value < math.inf:
        raise SetupError(f"{what} = {value!r}: give a number of seconds, 0 or more")
    return float(value)


def _check_spells(spells: Sequence[Spell], what: str) -> None:
    before = -math.inf
    for start, stop in spells:
        if not (0 <= start < stop and start > before):
            raise SetupError(
                f"{what}: connected from {start:g} to {stop:g} s; give spells in order, each from 0 on, after the one "
                "before it and ending after it begins"
            )
        before = stop


def _uniform(seed: int, *what: object) -> tuple[float, float]:
    """Two numbers in [0, 1), derived from the arguments."""
    name = "\0".join(map(str, (seed, *what))).encode()
    digest = blake3(name, derive_key_context=_CONTEXT).digest(16)
    first, second = (int.from_bytes(digest[at : at + 8], "little") >> 11 for at in (0, 8))
    return first * 2.0**-53, second * 2.0**-53
