"""The tasks that are in work at a commit, and the updates that wait for a later round.

They exist where late reports are carried. A simulation that goes on has them done again: those in work when their
reports come, those that wait at once, for the sum of a later round will ask for their updates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.simulation.frames import Message, opening_from, opening_to, request_from, request_to
from atoll.simulation.tasks import Arrival, Opening, TaskRequest

Upload = tuple[int, int, str]
"""Round, attempt and participant."""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """A task whose update was handed in, and may still be asked for; the update's digest."""

    request: TaskRequest
    digest: str


@dataclass
class RoundInWork:
    """An attempt at a round whose reports may still count.

    Attributes:
        opening: the invitation of its members.
        arrivals: the reports that are still to come, in their order.
        handed_in: the updates that came and that a later round may take, by participant.
    """

    opening: Opening
    arrivals: list[Arrival]
    handed_in: dict[str, HandedIn] = field(default_factory=dict)

    def only(self, waiting: Collection[Upload]) -> RoundInWork:
        """A copy with these updates alone."""
        at = self.opening.key[1:]
        found = {name: one for name, one in self.handed_in.items() if (*at, name) in waiting}
        return RoundInWork(self.opening, list(self.arrivals), found)


@dataclass(frozen=True)
class TasksInWork:
    """Participants' tasks in work at the instant of a commit.

    Attributes:
        rounds: the attempts with tasks in work or updates that wait, in the order of their keys.
        busy_until: the virtual second at which each participant has done the tasks that it has.
        states: the states of participants' files; see ``ParticipantStates``.
    """

    rounds: tuple[RoundInWork, ...] = ()
    busy_until: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> frozenset[str]:
        """The blobs of the models that tasks in work begin with."""
        return frozenset(one.opening.model.name for one in self.rounds)

    def needed_states(self) -> Mapping[str, Collection[str]]:
        """By participant, the states that tasks begin with which are done again, or that tasks which are done leave."""
        found: dict[str, set[str]] = {}
        for one in self.rounds:
            for handed in one.handed_in.values():
                found.setdefault(handed.request.participant, set()).add(handed.request.before)
            for arrival in one.arrivals:
                found.setdefault(arrival.request.participant, set()).add(after(one.opening.key))
        return found


def after(key: tuple[str, int, int]) -> str:
    """The state of a participant's files after its task of an attempt at a round."""
    return f"{key[1]}.{key[2]}"


def tasks_to(tasks: TasksInWork) -> Message:
    """For the database; see ``tasks_from``."""
    return {
        "rounds": [_round_to(one) for one in tasks.rounds],
        "busy_until": dict(tasks.busy_until),
        "states": dict(tasks.states),
    }


def tasks_from(message: Message, model_path: Callable[[str], Path]) -> TasksInWork:
    """The tasks that ``tasks_to`` has stored; ``model_path`` has the file of a model's blob, which may have moved."""
    rounds = tuple(_round_from(one, model_path) for one in message["rounds"])
    return TasksInWork(rounds, message["busy_until"], message["states"])


def _round_to(one: RoundInWork) -> Message:
    return {
        "opening": opening_to(one.opening),
        "arrivals": [[at.at, at.number, request_to(at.request), at.reports] for at in one.arrivals],
        "handed_in": [[request_to(handed.request), handed.digest] for handed in one.handed_in.values()],
    }


def _round_from(message: Message, model_path: Callable[[str], Path]) -> RoundInWork:
    opening = opening_from(message["opening"], model_path)
    arrivals = [Arrival(at, number, request_from(one), reports) for at, number, one, reports in message["arrivals"]]
    handed: list[tuple[list[Any], str]] = message["handed_in"]
    found = [HandedIn(request_from(one), digest) for one, digest in handed]
    return RoundInWork(opening, arrivals, {one.request.participant: one for one in found})
