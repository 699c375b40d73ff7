"""Blobs that no row names yet but that somebody is about to: they must not be removed meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from threading import Lock


class Leases:
    """Names of blobs in use, each by an owner and until some time. Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        self._lock = Lock()

    def hold(self, owner: str, name: str, *, until: float = math.inf) -> None:
        """Keep a blob until an epoch second, or until it is let go."""
        with self._lock:
            self._until[owner, name] = until

    def hold_only(self, owner: str, names: Iterable[str]) -> None:
        """The owner needs these blobs, until it says otherwise, and none of its others any more."""
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if key[0] != owner}
            self._until.update(dict.fromkeys(((owner, name) for name in names), math.inf))

    def held(self, now: float) -> frozenset[str]:
        """The names that are held at this epoch second."""
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until > now}
            return frozenset(name for _, name in self._until)
