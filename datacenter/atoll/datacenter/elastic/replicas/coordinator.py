"""The launcher's side of recovery in place: connects ``Quorums`` to the ranks of all groups, on this machine."""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Self

from atoll.datacenter.elastic.replicas.messages import Hello, Leave, ToRank, from_rank
from atoll.datacenter.elastic.replicas.quorum import Quorums
from atoll.datacenter.elastic.replicas.standing import Action, End, Fail, Rules, Say, Send
from atoll.datacenter.elastic.replicas.wire import Wire

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
GREETING_S = 30.0
"""Seconds in which a connection must say which rank it is."""


class Coordinator:
    """Serves the ranks of all groups; a context manager. Each connection has a thread; a lock orders their messages.

    A connection that closes before its rank has left means that its group is lost: the kernel closes it when the
    process dies, so the others learn of it at once.

    Args:
        rules: groups, ranks and limits.
        say: called with a line about each event.

    Attributes:
        address: host and port for ranks.
    """

    def __init__(self, rules: Rules, say: Callable[[str], None]) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=rules.groups * rules.ranks)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._say, self._quorums, self._ranks = say, Quorums(rules), rules.ranks
        self._changed = threading.Condition()
        self._connections: dict[int, dict[int, Wire]] = {}
        self._starts: dict[int, str] = {}
        self._ends: dict[int, str] = {}
        self._failure: str | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._accept, "replica groups"), (self._watch, "deadlines of replica groups"))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for group in self._connections.values():
                for wire in group.values():
                    wire.shut()
        try:
            socket.create_connection(self.address).close()  # wakes the thread that accepts
        except OSError as problem:
            log.debug("the listener was gone already: %s", problem)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def coming(self, group: int, start: str) -> None:
        """Expect the ranks of a group that was started; ``start`` names this start."""
        with self._changed:
            self._starts[group] = start
            self._ends.pop(group, None)
            self._connections[group] = {}
            self._act(self._quorums.coming(group, time.monotonic()))

    def lost(self, group: int) -> None:
        """Note that the processes of a group are gone."""
        with self._changed:
            self._lose(group)

    def stop(self) -> bool:
        """End the job with the next step that is committed; return whether groups have begun together."""
        with self._changed:
            self._act(self._quorums.stop())
            return self._quorums.begun

    def take_ends(self) -> dict[int, str]:
        """Return the groups that have to end since the last call, with the reasons.

        Raises:
            RuntimeError: if the job cannot continue.
        """
        with self._changed:
            if self._failure is not None:
                raise RuntimeError(self._failure)
            found, self._ends = self._ends, {}
            return found

    @property
    def live(self) -> list[int]:
        """Groups that take part in steps."""
        with self._changed:
            return self._quorums.live

    @property
    def ending_leader(self) -> int | None:
        """The group that writes the last step's checkpoint; None before that step was committed."""
        with self._changed:
            return self._quorums.ending_leader

    def is_stranded(self, started: Collection[int]) -> bool:
        """Return whether all groups that were started wait for a live group's state, and none is live any more."""
        with self._changed:
            return self._quorums.is_stranded(started)

    @property
    def counts(self) -> tuple[int, int]:
        """Groups lost, and groups healed."""
        with self._changed:
            return self._quorums.lost, self._quorums.healed

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._closed:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(Wire(connection),), name="replica group", daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        hello: Hello | None = None
        left = False
        try:
            said = from_rank(wire.receive(GREETING_S))
            if not isinstance(said, Hello):
                return
            hello = said
            with self._changed:
                if not self._is_start(hello):
                    return
                self._connections[hello.group][hello.position] = wire
            while not left:
                message = from_rank(wire.receive())
                if isinstance(message, Hello):
                    return
                left = isinstance(message, Leave)
                with self._changed:
                    if not self._is_start(hello):
                        return
                    now_s = time.monotonic()
                    self._act(self._quorums.heard(hello.group, hello.position, message, now_s))
        except (EOFError, OSError, TypeError, ValueError) as error:
            log.debug("a rank is gone: %s", error)
        finally:
            if hello is not None and not left:
                self._closed_by(hello)
            wire.close()

    def _is_start(self, hello: Hello) -> bool:
        """Return whether a rank is of the current start of its group, whose name only the launcher's ranks know."""
        start = self._starts.get(hello.group, "")
        in_group = hello.position in range(self._ranks)
        return in_group and start != "" and hmac.compare_digest(start.encode(), str(hello.start).encode())

    def _closed_by(self, hello: Hello) -> None:
        with self._changed:
            if not self._closed and self._is_start(hello):
                self._lose(hello.group)

    def _lose(self, group: int) -> None:
        self._starts.pop(group, None)
        for wire in self._connections.pop(group, {}).values():
            wire.shut()
        self._act(self._quorums.lost_group(group, time.monotonic()))

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                until_s, now_s = self._quorums.deadline_s(), time.monotonic()
                if until_s is not None and until_s <= now_s:
                    self._act(self._quorums.tick(now_s))
                    continue
                self._changed.wait(None if until_s is None else until_s - now_s)

    def _act(self, actions: Iterable[Action]) -> None:
        """Carry out actions, and have the deadline read again; under the lock, so that messages keep their order."""
        for action in actions:
            match action:
                case Send(group, message):
                    for wire in self._connections.get(group, {}).values():
                        _send(wire, message)
                case End(group, reason):
                    self._ends[group] = reason
                case Say(text):
                    self._say(text)
                case Fail(reason):
                    self._failure = reason
        self._changed.notify_all()


def _send(wire: Wire, message: ToRank) -> None:
    try:
        wire.send(message)
    except OSError as error:
        log.debug("a rank is gone: %s", error)  # its own thread hears of it, too
