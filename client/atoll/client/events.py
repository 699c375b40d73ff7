"""The events of a session, for its observer.

Observers are called from several threads, one event at a time, and should return quickly.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.task import RoundKey

log = logging.getLogger("atoll.client")


@dataclass(frozen=True)
class Event:
    """Base of all events; ``name`` is stable."""

    @property
    def name(self) -> str:
        """The event's name, in snake case."""
        letters = [f"_{char.lower()}" if char.isupper() else char for char in type(self).__name__]
        return "".join(letters).lstrip("_")

    def as_dict(self) -> dict[str, object]:
        """Name and fields, JSON-friendly."""
        return {"event": self.name, **asdict(self)}


@dataclass(frozen=True)
class Connected(Event):
    """The server welcomed the participant."""

    server: str
    participant: str
    server_version: str


@dataclass(frozen=True)
class Disconnected(Event):
    """The check-in stream ended; the next try is in ``retry_in_s``."""

    reason: str
    retry_in_s: float


@dataclass(frozen=True)
class CheckedIn(Event):
    """A unary check-in was answered; the next one is in ``next_in_s`` at the latest."""

    next_in_s: float


@dataclass(frozen=True)
class RoundEvent(Event):
    """Base of the events of one round."""

    key: RoundKey

    def as_dict(self) -> dict[str, object]:
        """Name, run, round and attempt (both from 0), and the other fields."""
        flat = super().as_dict()
        flat.pop("key")
        return {"event": flat.pop("event"), **asdict(self.key), **flat}


@dataclass(frozen=True)
class Invited(RoundEvent):
    """The server invited the participant to a round."""

    run_name: str
    kind: str
    cohort_size: int
    remaining_s: float


@dataclass(frozen=True)
class Declined(RoundEvent):
    """The participant declined the round."""

    reason: str


@dataclass(frozen=True)
class Transferred(RoundEvent):
    """Progress of a download or an upload; the last one has ``done_bytes`` equal to ``total_bytes``."""

    direction: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Trained(RoundEvent):
    """``fit`` or ``evaluate`` returned."""

    weight: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported(RoundEvent):
    """The server acknowledged the report, which is durable. ``disposition`` is counted, carried or dropped."""

    disposition: str
    weight: int


@dataclass(frozen=True)
class Stopped(RoundEvent):
    """The work was no longer wanted."""

    reason: str


@dataclass(frozen=True)
class Failed(RoundEvent):
    """The work failed."""

    reason: str


@dataclass(frozen=True)
class Renewed(Event):
    """A new certificate is in use, for ``lifetime_s``."""

    lifetime_s: float


@dataclass(frozen=True)
class Finished(Event):
    """The session ended."""

    reason: str
    reported: int


Observer = Callable[[Event], None]


class Announcer:
    """Passes events to an observer, one at a time; an exception of the observer is logged and ignored."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Pass one event."""
        with self._lock:
            try:
                self._observer(event)
            except Exception:
                log.exception("the observer failed at %s", event.name)


def log_event(event: Event) -> None:
    """The default observer: one log line per event, transfers at debug level."""
    level = logging.DEBUG if isinstance(event, Transferred) else logging.INFO
    if log.isEnabledFor(level):
        fields = ", ".join(f"{key}={value}" for key, value in event.as_dict().items() if key != "event")
        log.log(level, "%s: %s", event.name.replace("_", " "), fields)
