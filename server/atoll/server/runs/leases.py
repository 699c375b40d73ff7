"""Protects from removal blobs that no row refers to yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from threading import Lock


class Leases:
    """Leases on blobs by name, each with an owner and an expiry. Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        self._lock = Lock()

    def hold(self, owner: str, name: str, *, until: float = math.inf) -> None:
        """Hold a blob until an epoch second; by default until ``hold_only`` releases it."""
        with self._lock:
            self._until[owner, name] = until

    def hold_only(self, owner: str, names: Iterable[str]) -> None:
        """Hold exactly these blobs for the owner; its other leases are released."""
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if key[0] != owner}
            self._until.update(dict.fromkeys(((owner, name) for name in names), math.inf))

    def holds(self, owner: str, name: str, now: float) -> bool:
        """Whether the owner holds the blob at this epoch second."""
        with self._lock:
            return self._until.get((owner, name), 0.0) > now

    def held(self, now: float) -> frozenset[str]:
        """Names of the blobs that are held at this epoch second."""
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until > now}
            return frozenset(name for _, name in self._until)
