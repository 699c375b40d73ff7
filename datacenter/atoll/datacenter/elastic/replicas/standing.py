"""Values of the coordinator: rules of a job, the standing of a group, an attempt to sum, and the actions to take."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from atoll.datacenter.elastic.replicas.messages import Arrive, Quorum, ToRank


class Standing(Enum):
    """State of a group; see ``quorum``."""

    ABSENT = auto()
    COMING = auto()
    JOINING = auto()
    LIVE = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that do not change while a job runs.

    Attributes:
        groups: number of replica groups.
        ranks: ranks of each.
        steps: steps of the job.
        backup: number of groups that a step need not wait for; lost groups are among them.
        least: with fewer groups, live or ready to come back, no step is made.
        timeout_s: limit of a sum, and of how long a step waits for a group.
        speculate_after: a group is late when it takes this many times as long as half of the groups; None: no
            speculation.
    """

    groups: int
    ranks: int
    steps: int
    backup: int
    least: int
    timeout_s: float
    speculate_after: float | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to all ranks of a group."""

    group: int
    message: ToRank


@dataclass(frozen=True, slots=True)
class End:
    """End the processes of a group that does not answer."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True)
class Say:
    """Report an event."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job with an error."""

    reason: str


Action: TypeAlias = Send | End | Say | Fail


@dataclass
class Group:
    """One replica group.

    Attributes:
        joined: step of each rank that has joined since it was last LIVE.
        arrived: message of each rank that has arrived at the current step.
        at: last step that the whole group arrived at, or that it began with.
        awaited_since_s: when others began to wait for this group, or would have without backups; None: they do not
            wait.
        coming_since_s: when it began to start or come back, while it is COMING.
        ending: whether it was asked to end.
    """

    standing: Standing = Standing.ABSENT
    joined: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, Arrive] = field(default_factory=dict)
    at: int = 0
    awaited_since_s: float | None = None
    coming_since_s: float = 0.0
    ending: bool = False


@dataclass
class Attempt:
    """A quorum that is being summed.

    Attributes:
        votes: by group and rank, only of members that are not lost.
        until_s: when members that have not voted count as hung.
        failed: whether it is void.
        shrunk: whether a member was lost.
    """

    quorum: Quorum
    votes: dict[int, dict[int, bool]]
    until_s: float
    failed: bool = False
    shrunk: bool = False
