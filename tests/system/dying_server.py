"""``atoll`` with a server that kills itself, as ``kill -9`` does, at one exact moment.

``$ATOLL_DIES`` names it as ``WHEN:EVENT:COUNT``: ``before`` or ``after`` the COUNT-th batch of events with an EVENT of
that kind (see ``atoll.server.rounds.events``) has been made durable. Nothing else is changed.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from atoll.client.cli import main
from atoll.server.daemon.driver import Entry
from atoll.server.daemon.journal import SqlJournal


@dataclass
class Doom:
    """Counts down to the moment."""

    when: str
    event: str
    left: int

    @classmethod
    def parse(cls, text: str) -> Doom:
        """Read ``WHEN:EVENT:COUNT``."""
        when, event, count = text.split(":")
        return cls(when, event, int(count))

    def passes(self, when: str, entry: Entry) -> None:
        """Die if this is the moment."""
        if when != self.when or all(played.event.kind != self.event for played in entry.logged):
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def install(doom: Doom) -> None:
    """Make the journal of this process pass by ``doom``."""
    append = SqlJournal.append

    async def dying_append(self: SqlJournal, entry: Entry) -> None:
        doom.passes("before", entry)
        await append(self, entry)
        doom.passes("after", entry)

    SqlJournal.append = dying_append  # type: ignore[method-assign]  # a fault put in on purpose


if __name__ == "__main__":
    install(Doom.parse(os.environ["ATOLL_DIES"]))
    main()
