"""Pending deletions in a bucket: decided in a transaction, without a request, and carried out by a later sweep.

A blob that is written again while its deletion is pending must survive, so deletion and publication of a name exclude
each other here. Names are kept only in memory: after a crash the blob is found again because no row refers to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Condition


class PendingDeletions:
    """Names of blobs set aside whose objects still exist. Thread-safe."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._names: set[str] = set()
        self._publishing: Counter[str] = Counter()
        self._deleting: frozenset[str] = frozenset()

    def add(self, name: str) -> None:
        """Mark an object for deletion by the next batch."""
        with self._changed:
            self._names.add(name)

    def __contains__(self, name: object) -> bool:
        """Whether an object's deletion is pending or under way."""
        with self._changed:
            return name in self._names or name in self._deleting

    @contextmanager
    def publishing(self, name: str) -> Iterator[None]:
        """A context in which an object is written: it is not deleted meanwhile, and an earlier mark is removed."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._deleting)
            self._publishing[name] += 1
        try:
            yield
            with self._changed:
                self._names.discard(name)
        finally:
            with self._changed:
                self._publishing -= Counter((name,))

    def names(self) -> frozenset[str]:
        """The blobs to delete."""
        with self._changed:
            return frozenset(self._names)

    def keep(self, names: Iterable[str]) -> None:
        """Unmark these objects."""
        with self._changed:
            self._names.difference_update(names)

    @contextmanager
    def batch(self, allowed: frozenset[str]) -> Iterator[frozenset[str]]:
        """A context with the allowed names to delete; if it fails, they stay marked. Waits for another batch."""
        with self._changed:
            self._changed.wait_for(lambda: not self._deleting)
            names = frozenset(self._names & allowed - self._publishing.keys())
            self._deleting = names
            self._names -= names
        try:
            yield names
        except BaseException:
            with self._changed:
                self._names |= names
            raise
        finally:
            with self._changed:
                self._deleting = frozenset()
                self._changed.notify_all()
