"""The server's interval of keepalive pings, which an aggregator uses for its own participants.

A port has one interval from its opening to its end. So a change at the server takes effect when the aggregator starts
next; participants are told the interval that the port has.
"""

from __future__ import annotations

import logging
from pathlib import Path

from atoll.server.identity.files import PUBLIC_MODE, write_atomic
from atoll.wire.pacing import PING_S, ping_interval_s

log = logging.getLogger(__name__)

PING_FILE = "ping_s"


class PingInterval:
    """The interval of an aggregator's ports, and the one for its next start.

    Args:
        folder: data directory, which keeps what the server states.
        stated_s: what the server has just stated; None: use what is kept.

    Attributes:
        seconds: of this start.
    """

    def __init__(self, folder: Path, stated_s: float | None = None) -> None:
        self._path = folder / PING_FILE
        self._kept_s = self._read()
        kept_s = PING_S if self._kept_s is None else self._kept_s
        self.seconds = kept_s if stated_s is None else stated_s
        self.hear(self.seconds)

    def hear(self, ping_s: float) -> None:
        """The server states its interval: keep it for the next start if it has changed."""
        if ping_s == self._kept_s:
            return
        try:
            write_atomic(self._path, f"{ping_s:g}\n".encode(), mode=PUBLIC_MODE)
        except OSError as error:
            log.warning("the server's interval of pings cannot be kept, it is tried again later: %s", error)
            return
        self._kept_s = ping_s
        if ping_s != self.seconds:
            log.warning(
                "the server's ping_s is %g now: restart this aggregator to use it; it has %g until then",
                ping_s,
                self.seconds,
            )

    def _read(self) -> float | None:
        """The interval in seconds; the default one if none is kept, and None if the file is damaged."""
        try:
            return ping_interval_s(float(self._path.read_text(encoding="ascii")))
        except FileNotFoundError:
            return PING_S
        except (OSError, ValueError) as error:
            log.warning("%s is not used: %s; it is replaced", self._path, error)
            return None
