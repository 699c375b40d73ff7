"""A population's chain of charges, verified link by link and tallied by run.

It turns charges into events, which ``ledger`` passes to an accountant.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from atoll.accounting import Accountant
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.stores import Charge, Population, charges
from atoll.server.stores.errors import StoreDamagedError
from atoll.server.stores.hash_chain import canonical, digest_of

PAGE = 2000
"""Number of charges read at a time."""
_REMEMBERED = 256
"""Number of populations whose newest tally is cached, about 1 kB each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The body of a charge: the cost of one release, and the promise that it was made under.

    Attributes:
        accountant: the accountant that composes the run's own cost.
        adjacency: which data sets are neighbours.
        delta: delta of the run's promise.
        epsilon: the run's target; None if it gave its noise instead.
        version: train rounds that the run had released before.
        event: the event that the release adds; None if it adds nothing.
        clip: L2 norm to which updates were clipped in this round.
    """

    accountant: Accountant
    adjacency: Adjacency
    delta: float
    epsilon: float | None
    version: int
    event: Event | None
    clip: float

    def as_text(self) -> str:
        """The text form, for the body of a charge."""
        return canonical(asdict(self))


_COST = TypeAdapter(Cost)


def cost_of(contract: Contract, version: int, *, clip: float | None = None) -> Cost:
    """The cost of releasing train round ``version`` (from 0).

    Args:
        contract: the run's contract.
        version: train rounds released before.
        clip: this round's clip norm, if clipping is adaptive.

    Raises:
        ValueError: for a round that the contract does not cover.
    """
    event = contract.cost(version)
    return Cost(
        accountant=contract.accountant,
        adjacency=contract.adjacency,
        delta=contract.delta,
        epsilon=contract.epsilon,
        version=version,
        event=None if event is None or event.is_free else event,
        clip=contract.clip if clip is None else clip,
    )


def parsed_cost(charge: Charge) -> Cost:
    """The cost that a charge states.

    Raises:
        StoreDamagedError: if it cannot be read.
    """
    try:
        return _COST.validate_json(charge.body)
    except (ValidationError, ValueError) as error:
        raise StoreDamagedError(f"the charge of {charge.of_round} cannot be read") from error


def counted(events: Iterable[Event]) -> tuple[Event, ...]:
    """Count equal events together; the order of the result does not depend on that of the events."""
    counts: Counter[tuple[float, float, Sampling]] = Counter()
    for event in events:
        counts[event.noise_multiplier, event.sample_rate, event.sampling] += event.count
    return tuple(Event(noise, rate, count, sampling) for (noise, rate, sampling), count in sorted(counts.items()))


@dataclass(frozen=True)
class RunTally:
    """One run's charges: ``events`` as ``counted`` returns them, times in epoch seconds."""

    run_id: str
    accountant: Accountant
    delta: float
    target: float | None
    releases: int
    events: tuple[Event, ...]
    first_at: float
    last_at: float

    @classmethod
    def of(cls, charge: Charge) -> RunTally:
        """The tally after the run's first charge."""
        cost = parsed_cost(charge)
        events = () if cost.event is None else (cost.event,)
        at = charge.charged_at
        return cls(charge.run_id, cost.accountant, cost.delta, cost.epsilon, 1, events, at, at)

    def plus(self, charge: Charge) -> RunTally:
        """The tally extended by one charge."""
        cost = parsed_cost(charge)
        return replace(
            self,
            releases=self.releases + 1,
            events=self.events if cost.event is None else counted((*self.events, cost.event)),
            last_at=charge.charged_at,
        )


def add_charge(runs: dict[str, RunTally], charge: Charge) -> None:
    """Add a charge to the tally of its run.

    Raises:
        StoreDamagedError: if the charge cannot be read.
    """
    standing = runs.get(charge.run_id)
    runs[charge.run_id] = RunTally.of(charge) if standing is None else standing.plus(charge)


@dataclass(frozen=True)
class Tally:
    """A population's charges up to the one with digest ``head``, by run in the order of first charges."""

    population: str
    charges: int
    head: str
    runs: Mapping[str, RunTally] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all runs together."""
        return counted(event for run in self.runs.values() for event in run.events)

    def plus(self, found: Iterable[Charge]) -> Tally:
        """The tally extended by the charges that follow.

        Raises:
            StoreDamagedError: names the first charge that does not follow.
        """
        count, head, runs = self.charges, self.head, dict(self.runs)
        for charge in found:
            if charge.seq != count:
                raise damaged(self.population, f"charge {count} is missing: charge {charge.seq} comes in its place")
            if charge.previous != head:
                raise damaged(self.population, f"charge {count} does not follow the one before it")
            digest = digest_of(charge.entry)
            if digest != charge.digest:
                raise damaged(self.population, f"charge {count} was changed")
            add_charge(runs, charge)
            count, head = count + 1, digest
        return Tally(self.population, count, head, runs)


class _Remembered:
    """Caches the newest tally of each population, so that verified charges are not read again. Thread-safe.

    A tally is used only while the chain contains the digest that the tally ends with. So a tally of another database,
    or of a transaction that was rolled back, is never used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: OrderedDict[str, Tally] = OrderedDict()

    def find(self, connection: Connection, population: Population) -> Tally:
        with self._lock:
            found = self._tallies.get(population.root)
        fresh = Tally(population.name, 0, population.root)
        if found is None or not found.charges:
            return fresh
        return found if charges.digest_at(connection, population.name, found.charges - 1) == found.head else fresh

    def forget(self, population: Population) -> None:
        with self._lock:
            self._tallies.pop(population.root, None)

    def keep(self, population: Population, tally: Tally) -> None:
        with self._lock:
            self._tallies[population.root] = tally
            self._tallies.move_to_end(population.root)
            if len(self._tallies) > _REMEMBERED:
                self._tallies.popitem(last=False)


_remembered = _Remembered()


def tally(connection: Connection, population: Population, *, afresh: bool = False) -> Tally:
    """The population's charges up to the last, each verified; charges verified before are not read again.

    Args:
        connection: to the database.
        population: its row.
        afresh: verify all charges; earlier verification is forgotten, even if this one fails.

    Raises:
        StoreDamagedError: names the charge that was altered, moved or lost.
    """
    if afresh:
        _remembered.forget(population)
    found = _remembered.find(connection, population)
    while found.charges < population.charges:
        page = charges.of_population(connection, population.name, start=found.charges, limit=PAGE)
        if not page:
            break
        found = found.plus(page)
    if (found.charges, found.head) != (population.charges, population.head):
        raise damaged(population.name, _other_end(found, population))
    _remembered.keep(population, found)
    return found


def _other_end(found: Tally, population: Population) -> str:
    if found.charges != population.charges:
        return f"{population.charges} charges are on record, the first {found.charges} are here"
    return f"its {population.charges} charges end with {found.head}, not with the head on record"


def damaged(population: str, what: str) -> StoreDamagedError:
    """The error for a ledger that was altered on disk."""
    return StoreDamagedError(f"the privacy ledger of population {population} is damaged: {what}")
