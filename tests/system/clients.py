"""Participants of the system tests: real ``atoll client start`` processes, controlled and watched line by line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import WAIT_S
from tests.system.processes import ATOLL, HERE, Nursery, Process
from tests.system.servers import Server

Event = dict[str, Any]


@dataclass
class Client:
    """One participant: its state directory, and the process that works in it, if there is one now.

    Attributes:
        behaviour: a class of ``participants.py``, with its arguments, or ``FILE:CLASS``.
        access: how it reaches the server, as options of ``atoll client start``.
        eager: whether it returns sooner than a client should (``eager_client``).
        skew_s: how far ahead its clock is (``skewed``).
        prefix: words before its command.
        env: additions to its environment.
    """

    nursery: Nursery
    name: str
    behaviour: str
    access: Sequence[str]
    arguments: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    eager: bool = False
    skew_s: float = 0.0
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    _process: Process | None = None

    @property
    def state(self) -> Path:
        return self.nursery.folder / f"{self.name}-state"

    @property
    def process(self) -> Process:
        assert self._process is not None, f"client {self.name} was not started"
        return self._process

    @property
    def participant(self) -> str:
        """Its id, once it has been connected."""
        return str(self.wait("connected")["participant"])

    @property
    def identity(self) -> dict[str, str]:
        """The identity that enrolment gave it."""
        found: dict[str, str] = json.loads((self.state / "identity.json").read_text())
        return found

    def start(self) -> Client:
        """Start it, or start it again in the same state directory."""
        given = [f"--arg={name}={json.dumps(value)}" for name, value in self.arguments.items()]
        script = "eager_client.py" if self.eager else "skewed.py" if self.skew_s else ""
        atoll = (sys.executable, str(HERE / script)) if script else ATOLL
        target = self.behaviour if ":" in self.behaviour else f"participants:{self.behaviour}"
        command = (*atoll, "client", "start", target, "--json", "--state", str(self.state))
        self._process = self.nursery.start(
            (*self.prefix, *command, *self.access, *given, *self.options),
            self.name,
            env={"ATOLL_SKEW_S": str(self.skew_s), **self.env},
        )
        return self

    def wait(self, *names: str, count: int = 1, timeout_s: float = WAIT_S, **fields: object) -> Event:
        """The ``count``-th event of this process that has one of the names and these fields, once it has happened."""

        def choose(lines: list[str]) -> Event | None:
            found = [event for event in map(_event, lines) if _matches(event, names, fields)]
            return found[count - 1] if len(found) >= count else None

        return self.process.wait_for(choose, f"event {' or '.join(names)} {fields or ''} ({count})", timeout_s)

    def events(self, *names: str, **fields: object) -> list[Event]:
        """The events so far that have one of the names and these fields."""
        return [event for event in map(_event, self.process.lines) if _matches(event, names, fields)]

    def go(self) -> None:
        """Let a held participant continue."""
        self.process.tell("go")


class Crew:
    """Makes clients of one server, each with its own identity, and ends them."""

    def __init__(self, nursery: Nursery, server: Server, *, eager: bool = False) -> None:
        self._nursery = nursery
        self._server = server
        self._eager = eager
        self.clients: list[Client] = []

    def add(self, behaviour: str, *options: str, token: str = "", **arguments: object) -> Client:
        """Add a client without starting it."""
        name = f"{self._nursery.folder.name}-{len(self.clients)}-{behaviour.lower()}"
        if self._server.insecure:
            access = ["--insecure", "--server", self._server.address, "--participant", insecure_id(len(self.clients))]
        else:
            access = ["--join", token or self._server.operator.tokens(1)[0]]
        client = Client(self._nursery, name, behaviour, access, arguments, options, eager=self._eager)
        self.clients.append(client)
        return client

    def start(self, behaviour: str, *options: str, token: str = "", **arguments: object) -> Client:
        """Start a client, without waiting for its connection."""
        return self.add(behaviour, *options, token=token, **arguments).start()

    def steady(self, count: int, behaviour: str = "Steady") -> list[Client]:
        """Well-behaved clients 0, 1, ... ``count`` - 1."""
        return [self.start(behaviour, index=index) for index in range(count)]


@contextlib.contextmanager
def crew(server: Server, folder: Path, *, eager: bool = False) -> Iterator[Crew]:
    """Clients that do not outlive the block; their logs and states are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    hands = Nursery(folder)
    try:
        yield Crew(hands, server, eager=eager)
    finally:
        hands.close()


def insecure_id(number: int) -> str:
    """Return a participant id for use without TLS."""
    return "p" + chr(ord("a") + number) * 12


def _event(line: str) -> Event:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _matches(event: Event, names: Sequence[str], fields: Mapping[str, object]) -> bool:
    return event.get("event") in names and all(event.get(key) == value for key, value in fields.items())
