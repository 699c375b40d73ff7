"""Tasks and bytes of the last 24 hours, kept across restarts in ``<state>/usage.json``."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from atoll.client._state.files import read_private, replace_file
from atoll.client.errors import UsageError

_HOUR_S = 3600
_HOURS = 24


@dataclass(frozen=True)
class Spent:
    """Tasks accepted and bytes transferred in the last 24 hours."""

    rounds: int = 0
    bytes: int = 0


class UsageLog:
    """Tasks and bytes by hour of the wall clock; thread-safe.

    The sum covers 24 full hours and the current one. Hours in the future, after the clock was set back, still count:
    quotas become stricter for a while, never looser.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / "usage.json"
        self._lock = threading.Lock()
        self._hours: dict[int, list[int]] = self._read()

    def add(self, *, rounds: int = 0, transferred_bytes: int = 0) -> None:
        """Count accepted tasks and transferred bytes."""
        hour = int(time.time()) // _HOUR_S
        with self._lock:
            entry = self._hours.setdefault(hour, [0, 0])
            entry[0] += rounds
            entry[1] += transferred_bytes
            self._hours = {at: counts for at, counts in self._hours.items() if at >= hour - _HOURS}
            replace_file(self._path, json.dumps(self._hours), durable=False)

    def spent(self) -> Spent:
        """The sums of the last 24 hours."""
        oldest = int(time.time()) // _HOUR_S - _HOURS
        with self._lock:
            counts = [entry for at, entry in self._hours.items() if at >= oldest]
        return Spent(sum(rounds for rounds, _ in counts), sum(moved for _, moved in counts))

    def _read(self) -> dict[int, list[int]]:
        text = read_private(self._path)
        if text is None:
            return {}
        try:
            return {int(hour): [int(rounds), int(moved)] for hour, (rounds, moved) in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path} is damaged ({error}); remove it to start counting anew") from None
