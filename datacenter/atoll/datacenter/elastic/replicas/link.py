"""A rank's connection to the coordinator in its launcher."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

from atoll.datacenter.elastic.replicas.messages import (
    FromRank,
    Hello,
    ToRank,
    to_rank,
)
from atoll.datacenter.elastic.replicas.wire import Wire
from atoll.datacenter.errors import LayoutError, LostPeerError

TICKET_VARIABLE = "ATOLL_SILO_REPLICA"
"""Variable with a ``Ticket`` as JSON, which the launcher gives each rank."""
CONNECT_S = 30.0
"""Seconds to connect with the launcher."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A rank's information about its replica group and the launcher.

    Attributes:
        group: number of its group.
        groups: number of groups.
        start: name of this start of the group; a secret of the launcher and its ranks.
        host: host of coordinator and store.
        port: port of the coordinator.
        store_port: port of the key-value store of all groups.
        resumes: whether this group continues from the last checkpoint, instead of with a live group's state.
    """

    group: int
    groups: int
    start: str
    host: str
    port: int
    store_port: int
    resumes: bool

    def encoded(self) -> str:
        """Encode for the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def of_environment(cls) -> Self:
        """Read the launcher's ticket.

        Raises:
            LayoutError: if another launcher has started this rank.
        """
        if (found := os.environ.get(TICKET_VARIABLE)) is None:
            raise LayoutError(
                'faults.recovery = "in-place" needs `atoll silo train`, which restarts single replica groups: start '
                'the job with it, or set faults.recovery = "restart"'
            )
        return cls(**json.loads(found))


class Link:
    """A connection whose messages a thread reads.

    Args:
        ticket: how to reach the coordinator.
        position: number of this rank in its group.
        heard: called by the thread with each message.
        closed: called by the thread when the launcher has closed the connection, or is gone.

    Raises:
        LostPeerError: if the coordinator cannot be reached.
    """

    def __init__(
        self, ticket: Ticket, position: int, heard: Callable[[ToRank], None], closed: Callable[[], None]
    ) -> None:
        try:
            self._wire = Wire(socket.create_connection((ticket.host, ticket.port), CONNECT_S))
            self._wire.send(Hello(ticket.group, position, ticket.start))
        except OSError as error:
            raise LostPeerError(f"the launcher cannot be reached at {ticket.host}:{ticket.port}: {error}") from error
        self._heard, self._on_closed = heard, closed
        self._thread = threading.Thread(target=self._read, name="replica groups", daemon=True)
        self._thread.start()

    def send(self, message: FromRank) -> None:
        """Send a message; does nothing once the connection is closed, which ``closed`` reports."""
        try:
            self._wire.send(message)
        except OSError:
            self._wire.shut()

    def close(self) -> None:
        """Close the connection, and wait for the thread."""
        self._wire.shut()
        self._thread.join()

    def _read(self) -> None:
        try:
            while True:
                self._heard(to_rank(self._wire.receive()))
        except (EOFError, OSError, ValueError):
            self._on_closed()
        finally:
            self._wire.close()
