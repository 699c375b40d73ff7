"""Which objects of a bucket are to go: decided in a transaction, without a request, and carried out later by a sweep.

A blob that is written again while its deletion is on its way must survive: a deletion of a name and a publication of
it exclude each other here. Names are kept in memory only: after a crash the blob is found again as one that no row
names.
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
        """Have an object deleted by the next batch."""
        with self._changed:
            self._names.add(name)

    def __contains__(self, name: object) -> bool:
        """Whether an object is to go, or is going."""
        with self._changed:
            return name in self._names or name in self._deleting

    @contextmanager
    def publishing(self, name: str) -> Iterator[None]:
        """A context in which an object is written: it is not deleted meanwhile, nor because it was to go before."""
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
        """Leave these objects after all."""
        with self._changed:
            self._names.difference_update(names)

    @contextmanager
    def batch(self, allowed: frozenset[str]) -> Iterator[frozenset[str]]:
        """The allowed names, to delete now; those of a batch that fails come again. Waits for another batch."""
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
