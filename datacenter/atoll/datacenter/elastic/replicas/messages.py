"""Messages between the ranks of replica groups and the coordinator in their launcher, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

MAX_BYTES = 1 << 20
"""Largest message that either side accepts."""
NO_STATE = -1
"""The step of a rank that has no state of its own and needs a live group's."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a connection: which rank of which start of which group this is."""

    group: int
    position: int
    start: str


@dataclass(frozen=True, slots=True)
class Join:
    """This rank is ready to take part, from a step whose state it has, or NO_STATE."""

    step: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """This rank holds the gradient of a group's micro-batches of a step.

    Attributes:
        step: number of the step, from 0.
        tokens: tokens counted in them.
        loss: mean over these tokens; the same on every rank of the group.
        share: the late group whose micro-batches they are; None: this rank's own group.
    """

    step: int
    tokens: int
    loss: float
    share: int | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """Whether this rank has the mean of an attempt."""

    attempt: int
    good: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """This rank has finished; its connection closes."""


@dataclass(frozen=True, slots=True)
class AskStop:
    """This rank was asked to stop the job."""


@dataclass(frozen=True, slots=True)
class Heal:
    """One group sends its state to others.

    Attributes:
        number: counts these transfers; names their connections.
        source: group that sends.
        targets: groups that receive.
    """

    number: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A group that has joined takes part from a step on.

    Attributes:
        step: the next step.
        heal: who sends and receives state first; None: every group has it.
        leader: group that writes records and checkpoints.
    """

    step: int
    heal: Heal | None
    leader: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """The members of a step. Every member takes part in the sum; members that do not contribute add zeros.

    Attributes:
        attempt: counts attempts over the whole job.
        epoch: changes whenever members need new connections.
        step: number of the step.
        members: groups that get the mean.
        contributors: groups whose gradients are in it.
        tokens: counted tokens of the contributors.
        loss: mean over these tokens.
        held: late contributors, each with the group that has computed its gradient and hands it over.
    """

    attempt: int
    epoch: int
    step: int
    members: tuple[int, ...]
    contributors: tuple[int, ...]
    tokens: int
    loss: float
    held: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Speculate:
    """A group that has arrived at a step also runs the micro-batches of a late one, until the step is made.

    Attributes:
        step: number of the step, from 0.
        share: the late group.
    """

    step: int
    share: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an attempt's mean counts: all members apply it, or none does.

    Attributes:
        attempt: the attempt.
        commit: whether it counts. If not, another attempt follows.
        stop: whether the job ends with this step.
        leader: group that writes records and checkpoints after this step.
        heal: state to send after this step; None: none.
        lost: groups lost since the job's launcher began.
        healed: groups healed since then.
    """

    attempt: int
    commit: bool
    stop: bool = False
    leader: int = 0
    heal: Heal | None = None
    lost: int = 0
    healed: int = 0


@dataclass(frozen=True, slots=True)
class Behind:
    """This group is too far behind to get further means: it takes part in no step from this one on."""

    step: int


@dataclass(frozen=True, slots=True)
class Over:
    """The job has ended or is about to: this group is not needed any more."""


FromRank: TypeAlias = Join | Arrive | Vote | Leave | AskStop
ToRank: TypeAlias = Begin | Speculate | Quorum | Decision | Behind | Over
Message: TypeAlias = Hello | FromRank | ToRank
_FROM_RANKS = (Hello, Join, Arrive, Vote, Leave, AskStop)
_TO_RANKS = (Begin, Speculate, Quorum, Decision, Behind, Over)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*_FROM_RANKS, *_TO_RANKS)}


def encoded(message: Message) -> bytes:
    """Encode a message; numbers that are not finite are kept."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()


def from_rank(data: bytes) -> Hello | FromRank:
    """Decode a message of a rank.

    Raises:
        ValueError: if it is no such message.
    """
    match message := _decoded(data):
        case Hello() | Join() | Arrive() | Vote() | Leave() | AskStop():
            return message
        case _:
            raise ValueError(f"a message {type(message).__name__} does not come from a rank")


def to_rank(data: bytes) -> ToRank:
    """Decode a message of the coordinator.

    Raises:
        ValueError: if it is no such message.
    """
    match message := _decoded(data):
        case Begin() | Speculate() | Quorum() | Decision() | Behind() | Over():
            return message
        case _:
            raise ValueError(f"a message {type(message).__name__} does not come from the coordinator")


def _decoded(data: bytes) -> object:
    try:
        found: dict[str, Any] = json.loads(data)
        kind = _KINDS[found.pop("kind")]
        fields = {name: _tuples(value) for name, value in found.items()}
        if (heal := found.get("heal")) is not None:
            fields["heal"] = Heal(heal["number"], heal["source"], tuple(heal["targets"]))
        message: object = kind(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message: {error!r}") from error
    return message


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
