"""The privacy terms that operators promised to this participant in all its runs, in one small file.

There is one entry for each run of a server, with the largest epsilon and the largest delta that the run promised.
Promises of several runs are added (basic composition: Dwork & Roth 2014, theorem 3.16), which also holds if later runs
are chosen adaptively (Rogers et al. 2016). They are added over all populations and servers, because a population is
only a name that the operator chooses.

An entry is on disk before training begins and is never removed. The file is replaced atomically, under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.client._state.files import alone_with
from atoll.client._state.records import FOLDER, from_json, read_record, to_json, write_record
from atoll.client.errors import BudgetSpentError
from atoll.client.privacy_demand import Total
from atoll.text.figures import bound, counted

if TYPE_CHECKING:
    from atoll.client.task import Task

MAX_ENTRIES = 1000
"""With more entries, the older half is merged by population or, if that is not enough, by server."""
EARLIER = "earlier runs"
_VERSION = 1


@dataclass(frozen=True)
class Promise:
    """The promise of one run, or of several ``runs`` together; ``first_at`` is ISO 8601 in UTC.

    Attributes:
        server: the fingerprint of its CA; without TLS its address.
        population: the operator's name for it.
        run: its id; empty for several runs.
    """

    server: str
    population: str
    run: str
    run_name: str
    epsilon: float
    delta: float
    first_at: str
    runs: int = 1


@dataclass(frozen=True)
class Record:
    """The file's content; ``limit`` is the limit when it was last written."""

    promises: tuple[Promise, ...]
    limit: Total

    @property
    def total(self) -> Total:
        """The sum over all runs."""
        return total_of(self.promises)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(promise.runs for promise in self.promises)


def total_of(promises: Iterable[Promise]) -> Total:
    """The sum of promises, in decimal arithmetic: three deltas of 1e-5 are exactly 3e-5."""
    every = tuple(promises)
    return Total(_decimal_sum(one.epsilon for one in every), _decimal_sum(one.delta for one in every))


def _decimal_sum(amounts: Iterable[float]) -> float:
    return float(sum((Decimal(repr(amount)) for amount in amounts), start=Decimal()))


def path_of(state: Path) -> Path:
    """Path of the promises in a state directory."""
    return state / FOLDER / "promises.json"


class Promises:
    """The file of promises, with a limit; see the module.

    Args:
        path: of the file; its folder is created.
        server: the server of the next runs.
        limit: of the sum over all runs.
    """

    def __init__(self, path: Path, server: str, limit: Total) -> None:
        self.path, self.limit = path, limit
        self._server = server

    def objection(self, task: Task) -> str | None:
        """The reason why the limit does not allow the task's run; None if it does, or if the run has no terms.

        Raises:
            UsageError: if the file is damaged.
        """
        if task.privacy is None:
            return None
        before = self._record()
        return self._objection(before, self._with(before.promises, task))

    def keep(self, task: Task) -> None:
        """Record the promise of the task's run, durably, unless it is recorded already.

        Raises:
            BudgetSpentError: if the limit does not allow it; nothing is recorded then.
            UsageError: if the file is damaged or cannot be written.
        """
        if task.privacy is None:
            return
        with alone_with(self.path):
            before = self._record()
            promises = self._with(before.promises, task)
            objection = self._objection(before, promises)
            if objection is not None:
                raise BudgetSpentError(objection)
            if promises != before.promises or self.limit != before.limit:
                self._write(_bounded(promises))

    def _record(self) -> Record:
        return read_promises(self.path) or Record((), Total())

    def _objection(self, before: Record, promises: Iterable[Promise]) -> str | None:
        spent, after = before.total, total_of(promises)
        for name, key in (("epsilon", "max_total_epsilon"), ("delta", "max_total_delta")):
            limit = getattr(self.limit, name)
            if not getattr(after, name) <= limit:
                return (
                    f"privacy: {counted(before.runs, 'run')} promised {name} {bound(getattr(spent, name))} together, "
                    f"with this one it would be {bound(getattr(after, name))}, at most {limit:g} allowed ({key})"
                )
        return None

    def _with(self, promises: tuple[Promise, ...], task: Task) -> tuple[Promise, ...]:
        terms = task.privacy
        if terms is None:
            return promises
        for index, known in enumerate(promises):
            if (known.server, known.run) == (self._server, task.run):
                larger = replace(known, epsilon=max(known.epsilon, terms.epsilon), delta=max(known.delta, terms.delta))
                return (*promises[:index], larger, *promises[index + 1 :])
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = Promise(self._server, terms.population, task.run, task.run_name, terms.epsilon, terms.delta, now)
        return (*promises, new)

    def _write(self, promises: tuple[Promise, ...]) -> None:
        document = {
            "limit": {"epsilon": to_json(self.limit.epsilon), "delta": to_json(self.limit.delta)},
            "promises": [asdict(one) | {"epsilon": to_json(one.epsilon)} for one in promises],
        }
        write_record(self.path, _VERSION, document, "no run is joined without a record of its promise")


def read_promises(path: Path) -> Record | None:
    """The file's last content; None if there is no file.

    Raises:
        UsageError: if it cannot be read or is damaged.
    """
    return read_record(path, _VERSION, _content, "restore it, or the recorded promises are forgotten")


def _content(document: dict[str, Any]) -> Record:
    limit = Total(*(_amount(document["limit"][name]) for name in ("epsilon", "delta")))
    return Record(tuple(map(_promise, document["promises"])), limit)


def _promise(item: dict[str, Any]) -> Promise:
    if not isinstance(item["runs"], int) or item["runs"] < 1:
        raise ValueError(f"{item['runs']} runs")
    texts = {name: str(item[name]) for name in ("server", "population", "run", "run_name", "first_at")}
    return Promise(epsilon=_amount(item["epsilon"]), delta=_amount(item["delta"]), runs=item["runs"], **texts)


def _amount(value: float | str) -> float:
    number = from_json(value)
    if not number >= 0:
        raise ValueError(f"an amount of {number}")
    return number


def _bounded(promises: tuple[Promise, ...]) -> tuple[Promise, ...]:
    if len(promises) <= MAX_ENTRIES:
        return promises
    older, newer = promises[: -MAX_ENTRIES // 2], promises[-MAX_ENTRIES // 2 :]
    summed = _added_up(older, lambda one: (one.server, one.population))
    if len(summed) > MAX_ENTRIES // 4:
        summed = _added_up(summed, lambda one: (one.server, ""))
    return (*summed, *newer)


def _added_up(promises: Iterable[Promise], group_of: Callable[[Promise], tuple[str, str]]) -> tuple[Promise, ...]:
    groups: dict[tuple[str, str], list[Promise]] = {}
    for one in promises:
        groups.setdefault(group_of(one), []).append(one)
    return tuple(_sum(server, population, ones) for (server, population), ones in groups.items())


def _sum(server: str, population: str, ones: list[Promise]) -> Promise:
    total, runs = total_of(ones), sum(one.runs for one in ones)
    return Promise(server, population, "", EARLIER, total.epsilon, total.delta, min(o.first_at for o in ones), runs)
