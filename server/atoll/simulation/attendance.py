"""Connect and disconnect participants according to their behaviour, and when they drop out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from atoll.server.runs.session import Introduction
from atoll.simulation.behaviour import Behaviour, Presence
from atoll.simulation.population import Population
from atoll.simulation.sessions import VirtualSessions
from atoll.simulation.virtual_time import virtual_loop


@dataclass(frozen=True)
class Attended:
    """The participants that are connected at an instant.

    Attributes:
        numbers: of the connected participants, int32, in the order in which they connected.
        counted_from: value of their sessions' field, float64; see ``Session``.
        away: numbers of participants that dropped out and have not returned, int32.
        back_at: the second at which each of them returns, float64.
        changes: number of connects and disconnects so far.
    """

    numbers: npt.NDArray[np.int32]
    counted_from: npt.NDArray[np.float64]
    away: npt.NDArray[np.int32]
    back_at: npt.NDArray[np.float64]
    changes: int


class Attendance:
    """Connects and disconnects the participants of a simulation.

    Args:
        population: all participants.
        behaviour: how they behave in virtual time.

    Attributes:
        sessions: of the server; set before the first participant connects.
        presence: when each is connected.
    """

    sessions: VirtualSessions

    def __init__(self, population: Population, behaviour: Behaviour) -> None:
        self.presence = Presence(behaviour, population)
        self._population = population
        self._names = population.names
        self._back_s = behaviour.back_s
        self._introductions: Mapping[str, Introduction] = {}
        self._away_until: dict[int, float] = {}
        self._changes = 0

    def begin(self, introductions: Mapping[str, Introduction]) -> None:
        """Connect the participants that are always available."""
        self._introductions = introductions
        if self.presence.everyone_stays:
            for name, introduction in introductions.items():
                self.sessions.join(name, introduction)

    def go_on(self, introductions: Mapping[str, Introduction], at: Attended) -> None:
        """Connect the participants that were connected at a recorded instant, which is now."""
        self._introductions, self._changes = introductions, at.changes
        for number, counted_from in zip(at.numbers.tolist(), at.counted_from.tolist(), strict=True):
            name = self._names[number]
            self.sessions.join(name, introductions[name], counted_from)
        for number, second in zip(at.away.tolist(), at.back_at.tolist(), strict=True):
            self._expect_back(number, second)

    def now(self) -> Attended:
        """The participants that are connected now."""
        second, there = asyncio.get_running_loop().time(), self.sessions.all()
        away = sorted((back, number) for number, back in self._away_until.items() if back > second)
        return Attended(
            np.array([self._population.number_of(one.participant) for one in there], np.int32),
            np.array([one.counted_from for one in there], np.float64),
            np.array([number for _, number in away], np.int32),
            np.array([back for back, _ in away], np.float64),
            self._changes,
        )

    async def come_and_go(self) -> None:
        """Connect and disconnect the participants that are not always available, each at its time."""
        loop = virtual_loop()
        changes = sorted(self.presence.changes())[self._changes :]
        for at, together in groupby(changes, key=lambda change: change[0]):
            await loop.until(at)
            for _, number, comes in together:
                self._changes += 1
                if comes:
                    self._join(number)
                else:
                    self.sessions.go_offline(self._names[number])

    def drop_out(self, number: int) -> None:
        """A participant leaves, loses its work, and returns later."""
        self.sessions.go_offline(self._names[number])
        self._expect_back(number, virtual_loop().time() + self._back_s)

    def _expect_back(self, number: int, second: float) -> None:
        self._away_until[number] = second
        asyncio.get_running_loop().call_at(second, self._join, number)

    def _join(self, number: int) -> None:
        """Connect a participant, unless it is away or is connected already."""
        name, now = self._names[number], asyncio.get_running_loop().time()
        there = self.presence.next_there(number, now) <= now and self._away_until.get(number, 0.0) <= now
        if there and self.sessions.get(name) is None:
            self.sessions.join(name, self._introductions[name])
