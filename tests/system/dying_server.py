"""``atoll`` with a server that kills itself, as ``kill -9`` does, at one exact moment.

``$ATOLL_DIES`` names the moment as ``MOMENT:COUNT``, for its COUNT-th occurrence. It is ``before`` or ``after`` one
of these:

* an event's kind (``before reported``): the batch with such an event is made durable (``atoll.server.rounds.events``);
* an effect's name (``after Fold``): the effect's work starts (``atoll.server.rounds.effects``);
* ``chunk``: a chunk of an upload is stored; ``transaction`` (before only): the database commits;
* ``fsync``, ``link``, ``rename``, ``replace``, ``unlink``: the server asks the file system for that.

``any`` matches all of them. The last line of standard error says at which moment it died. With ``$ATOLL_NOISE_SECRET``
(hex) private runs begin with that secret, so that two of them can be compared. Nothing else is changed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

from atoll.client.cli import main
from atoll.server.ingest.segment import Segment
from atoll.server.privacy import run as private_run
from atoll.server.rounds import Effect
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.stepping import Entry, Work

ANY = "any"


@dataclass
class Doom:
    """Counts down to the moment."""

    moment: str
    left: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> Doom:
        """Read ``MOMENT:COUNT``."""
        moment, _, count = text.rpartition(":")
        return cls(moment, int(count))

    def passes(self, *moments: str) -> None:
        """Die if this is the moment, which may have several names."""
        met = [moment for moment in moments if self.moment in (ANY, moment)]
        if not met:
            return
        with self._lock:
            self.left -= 1
            if self.left == 0:
                os.write(2, f"killed itself {met[0]}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, with a moment before and one after it."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.passes(f"before {name}")
            result = function(*args, **kwargs)
            self.passes(f"after {name}")
            return result

        return watched


def install(doom: Doom) -> None:
    """Make every moment of this process call ``doom``."""
    append, start = SqlJournal.append, RunPerformer._start

    async def dying_append(self: SqlJournal, entry: Entry) -> None:
        kinds = [played.event.kind for played in entry.logged]
        doom.passes(*(f"before {kind}" for kind in kinds))
        await append(self, entry)
        doom.passes(*(f"after {kind}" for kind in kinds))

    def dying_start(self: RunPerformer, effect: Effect, work: Work) -> None:
        doom.around(start, type(effect).__name__)(self, effect, work)

    SqlJournal.append = dying_append  # type: ignore[method-assign]  # faults put in on purpose
    RunPerformer._start = dying_start  # type: ignore[method-assign]
    Segment.append = doom.around(Segment.append, "chunk")  # type: ignore[method-assign]
    for name in ("fsync", "link", "rename", "replace", "unlink"):
        setattr(os, name, doom.around(getattr(os, name), name))
    event.listen(Engine, "commit", lambda _: doom.passes("before transaction"))
    if secret := os.environ.get("ATOLL_NOISE_SECRET"):
        private_run.new_secret = lambda: bytes.fromhex(secret)  # type: ignore[attr-defined]


if __name__ == "__main__":
    install(Doom.parse(os.environ["ATOLL_DIES"]))
    main()
