"""The tasks that are running at a commit, and the updates that wait for a later round.

They exist only if late reports are carried. A resumed simulation repeats them: running tasks when their reports are
due, waiting updates at once, because a later round's sum needs them.
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
    """A task whose update was handed in and may still be needed, with the update's digest."""

    request: TaskRequest
    digest: str


@dataclass
class RoundInWork:
    """An attempt at a round whose reports may still count.

    Attributes:
        opening: the invitation of its members.
        arrivals: the pending reports, in order.
        handed_in: the updates that a later round may take, by participant.
    """

    opening: Opening
    arrivals: list[Arrival]
    handed_in: dict[str, HandedIn] = field(default_factory=dict)

    def only(self, waiting: Collection[Upload]) -> RoundInWork:
        """A copy with only these updates."""
        at = self.opening.key[1:]
        found = {name: one for name, one in self.handed_in.items() if (*at, name) in waiting}
        return RoundInWork(self.opening, list(self.arrivals), found)


@dataclass(frozen=True)
class TasksInWork:
    """Participants' running tasks at the instant of a commit.

    Attributes:
        rounds: the attempts with running tasks or waiting updates, in the order of their keys.
        busy_until: the virtual second at which each participant has finished its tasks.
        states: the states of participants' files; see ``ParticipantStates``.
    """

    rounds: tuple[RoundInWork, ...] = ()
    busy_until: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> frozenset[str]:
        """The blobs of the models from which running tasks start."""
        return frozenset(one.opening.model.name for one in self.rounds)

    def needed_states(self) -> Mapping[str, Collection[str]]:
        """By participant, the states before repeated tasks and after finished tasks."""
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
    """Encode for the database; see ``tasks_from``."""
    return {
        "rounds": [_round_to(one) for one in tasks.rounds],
        "busy_until": dict(tasks.busy_until),
        "states": dict(tasks.states),
    }


def tasks_from(message: Message, model_path: Callable[[str], Path]) -> TasksInWork:
    """Decode the tasks of ``tasks_to``; ``model_path`` returns the file of a model's blob, which may have moved."""
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
