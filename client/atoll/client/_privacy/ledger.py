"""A participant's privacy ledger: the budget spent on its data in all rounds and runs, in one small file.

A round is charged before its data is used, and the charge is on disk before ``charge`` returns: after a crash the
ledger may show too much, never too little. A failed round is not refunded.

The file is replaced atomically, under a lock, so several processes may share a ledger. It has one entry per run and
mechanism; if there are more than ``MAX_ENTRIES``, the oldest are merged into entries without a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.client._state.files import alone_with
from atoll.client._state.records import from_json, read_record, to_json, write_record
from atoll.client.errors import BudgetSpentError, UsageError
from atoll.text.figures import bound

if TYPE_CHECKING:
    from atoll.client.task import RoundKey

MAX_ENTRIES = 1000
_VERSION = 1
_MAX_COUNT = 2**53


@dataclass(frozen=True)
class Limit:
    """A limit: epsilon, and the probability ``delta`` that it does not hold.

    Raises:
        UsageError: for values out of range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"a limit of epsilon = {self.epsilon}; allowed is anything above 0")
        if not 0 <= self.delta < 1:
            raise UsageError(f"a limit of delta = {self.delta}; allowed is 0 to below 1")


@dataclass(frozen=True)
class Release:
    """``count`` releases of one mechanism.

    Attributes:
        mechanism: its name.
        noise_multiplier: standard deviation of the noise over the sensitivity; 0 without Gaussian noise.
        epsilon: of one release, for a mechanism with pure epsilon; otherwise 0.
        sample_rate: probability that a sample is in a release.
        count: number of releases.
    """

    mechanism: str
    noise_multiplier: float = 0.0
    epsilon: float = 0.0
    sample_rate: float = 1.0
    count: int = 1


@dataclass(frozen=True)
class Entry:
    """The releases of one run with the same parameters; times are ISO 8601 in UTC."""

    run: str
    run_name: str
    release: Release
    rounds: int
    first_at: str
    last_at: str

    def has(self, run: str, release: Release) -> bool:
        """Whether releases of that run with the same parameters belong to this entry."""
        return self.run == run and replace(self.release, count=1) == replace(release, count=1)


@dataclass(frozen=True)
class Account:
    """A ledger's content: its unit of privacy, its limit when it was last charged, and the epsilon spent."""

    unit: str
    limit: Limit
    epsilon: float
    entries: tuple[Entry, ...]

    @property
    def rounds(self) -> int:
        """Number of charged rounds."""
        return sum(entry.rounds for entry in self.entries)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of all entries."""
        return tuple(entry.release for entry in self.entries)


Cost = Callable[[Sequence[Release], float], float]
"""Computes the epsilon of releases at a delta, valid also if the server chooses their number adaptively."""


class Ledger:
    """A ledger file, with a limit; see the module.

    Args:
        path: of the file; its folder is created.
        unit: unit of privacy: "sample" or "participant".
        limit: of the ledger.
        cost: computes the epsilon of releases.
    """

    def __init__(self, path: Path, unit: str, limit: Limit, cost: Cost) -> None:
        self.path, self.unit, self.limit = path, unit, limit
        self._cost = cost

    def account(self) -> Account:
        """Epsilon spent so far, at the limit's delta.

        Raises:
            UsageError: if the file is damaged or about another unit.
        """
        entries = self._entries()
        return Account(self.unit, self.limit, self._epsilon(entries), entries)

    def objection(self, release: Release) -> str | None:
        """Why the limit does not allow a release; None if it does."""
        entries = self._entries()
        after = self._epsilon(_added(entries, "", "", release))
        if after <= self.limit.epsilon:
            return None
        return (
            f"privacy: {bound(self._epsilon(entries))} of epsilon {self.limit.epsilon:g} (delta {self.limit.delta:g}) "
            f"are spent on each {self.unit} here, and this round would make it {bound(after)}; "
            f"it takes part again with a higher limit or more noise"
        )

    def charge(self, key: RoundKey, run_name: str, release: Release) -> None:
        """Charge a round, durably.

        Raises:
            BudgetSpentError: if the limit does not allow it; nothing is charged then.
            UsageError: if the file is damaged, about another unit, or cannot be written.
        """
        with alone_with(self.path):
            objection = self.objection(release)
            if objection is not None:
                raise BudgetSpentError(objection)
            self._write(_added(self._entries(), key.run, run_name, release))

    def settle(self, key: RoundKey, release: Release, made: int) -> None:
        """Reduce a charged round to the ``made`` releases that took place, once no more can follow."""
        unused = release.count - made
        if not 0 <= made <= release.count:
            raise ValueError(f"{made} releases were made of {release.count} that were charged")
        if not unused:
            return
        with alone_with(self.path):
            entries = tuple(
                replace(entry, release=replace(entry.release, count=entry.release.count - unused))
                if entry.has(key.run, release) and entry.release.count >= unused
                else entry
                for entry in self._entries()
            )
            self._write(entries)

    def _epsilon(self, entries: Iterable[Entry]) -> float:
        releases = [entry.release for entry in entries if entry.release.count]
        return self._cost(releases, self.limit.delta) if releases else 0.0

    def _entries(self) -> tuple[Entry, ...]:
        found = read_account(self.path)
        if found is None:
            return ()
        if found.unit != self.unit:
            raise UsageError(f"{self.path} is a ledger of each {found.unit}, not of each {self.unit}")
        return found.entries

    def _write(self, entries: tuple[Entry, ...]) -> None:
        entries = _bounded(entries)
        document = {
            "unit": self.unit,
            "limit": {"epsilon": to_json(self.limit.epsilon), "delta": self.limit.delta},
            "epsilon": to_json(self._epsilon(entries)),
            "entries": [asdict(entry) for entry in entries],
        }
        write_record(self.path, _VERSION, document, "no budget is spent without a record")


def read_account(path: Path) -> Account | None:
    """The content of a ledger's file; None if there is no file.

    Raises:
        UsageError: if it cannot be read or is damaged.
    """
    return read_record(path, _VERSION, _account, "restore it, or the spent budget is forgotten")


def _account(document: dict[str, Any]) -> Account:
    limit = Limit(from_json(document["limit"]["epsilon"]), float(document["limit"]["delta"]))
    entries = tuple(map(_entry, document["entries"]))
    return Account(str(document["unit"]), limit, from_json(document["epsilon"]), entries)


def _entry(item: dict[str, Any]) -> Entry:
    release = Release(**item["release"])
    numbers = (release.noise_multiplier, release.epsilon, release.sample_rate)
    if not isinstance(release.mechanism, str):
        raise TypeError(f"a mechanism called {release.mechanism!r}")
    if not all(isinstance(number, int | float) and 0 <= float(number) < math.inf for number in numbers):
        raise ValueError(f"a release of {numbers}")
    if not all(isinstance(count, int) and 0 <= count <= _MAX_COUNT for count in (release.count, item["rounds"])):
        raise ValueError(f"counts of {release.count} and {item['rounds']}")
    texts = {name: str(item[name]) for name in ("run", "run_name", "first_at", "last_at")}
    return Entry(release=release, rounds=item["rounds"], **texts)


def _added(entries: tuple[Entry, ...], run: str, run_name: str, release: Release) -> tuple[Entry, ...]:
    """The entries with one more release, in the order of their first charge."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for index, entry in enumerate(entries):
        if entry.has(run, release):
            more = replace(entry.release, count=entry.release.count + release.count)
            grown = replace(entry, release=more, rounds=entry.rounds + 1, last_at=now)
            return (*entries[:index], grown, *entries[index + 1 :])
    return (*entries, Entry(run, run_name, release, 1, now, now))


def _bounded(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Merge the oldest entries with equal parameters, under no run, if there are more than ``MAX_ENTRIES``."""
    surplus = max(0, len(entries) - MAX_ENTRIES // 2) if len(entries) > MAX_ENTRIES else 0
    sums: dict[Release, Entry] = {}
    for entry in entries[:surplus]:
        kind = replace(entry.release, count=1)
        known = sums.get(kind)
        count = entry.release.count + (known.release.count if known else 0)
        sums[kind] = Entry(
            run="",
            run_name="earlier runs",
            release=replace(kind, count=count),
            rounds=entry.rounds + (known.rounds if known else 0),
            first_at=min(entry.first_at, known.first_at) if known else entry.first_at,
            last_at=max(entry.last_at, known.last_at) if known else entry.last_at,
        )
    return (*sums.values(), *entries[surplus:])
