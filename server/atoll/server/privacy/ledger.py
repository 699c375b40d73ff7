"""The ledger: what has been spent of each population's privacy, and whether a round may spend more.

A run's own promise is added up by its accountant: its noise and its rounds are fixed when it is submitted. A population
is added up by one privacy filter from its first charge on (``atoll.accounting.filtering``), as later runs are chosen by
people who have seen what earlier ones released. A round that would spend too much does not start (``check``), and a
charge is checked again in the transaction that releases (``record``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import Connection

from atoll.accounting import Accountant
from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.privacy import MAX_DELTA, MIN_DELTA, POPULATION_PATTERN
from atoll.server.privacy import accounting, reconciling
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import AdjacencyError, BudgetSpentError
from atoll.server.privacy.tally import RunTally, Tally, cost_of, damaged, tally
from atoll.server.privacy.values import Adjacency, Event
from atoll.server.stores import Charge, Population, RecordMissingError, Release, StoreDamagedError, charges, populations
from atoll.server.stores import release as releases
from atoll.wire.figures import SET_DIGITS, bound, counted, figure

MAX_EPSILON = 1000.0
"""A limit beyond this promises nothing."""
NO_ACCOUNT: Accountant = "rdp"
"""Named where nothing is charged."""
_FLOAT_ERROR = 1e-9
"""Relative: charges of correlated noise are differences of sums."""


@dataclass(frozen=True)
class RunSpent:
    """What one run has spent: epsilon at its ``delta``; ``target`` is what it promised.

    ``accountant`` is whose answer that is: its own, or ``rdp`` where ``prv`` has none there, or no smaller one.
    """

    run_id: str
    epsilon: float
    delta: float
    accountant: Accountant
    target: float | None
    releases: int
    first_at: float
    last_at: float


@dataclass(frozen=True)
class Spent:
    """What a population has spent: epsilon at ``delta``, by ``accountant``; by run in the order of their first charge.

    ``delta`` is that of the population's limit; of its strictest run where it has none; None while nothing is charged.
    """

    population: Population
    epsilon: float
    delta: float | None
    accountant: Accountant
    runs: tuple[RunSpent, ...]

    @property
    def left(self) -> float | None:
        """Epsilon that is left of the limit; None where there is no limit."""
        return None if self.population.epsilon is None else max(0.0, self.population.epsilon - self.epsilon)


def enrol(connection: Connection, contract: Contract, now: float) -> Population:
    """The population of a new run, made if it is the first: in the transaction that submits the run.

    Raises:
        AdjacencyError: if the population's other runs promise something else.
    """
    standing = populations.find(connection, contract.population)
    if standing is None:
        return populations.add(connection, contract.population, contract.adjacency, now)
    if standing.adjacency != contract.adjacency:
        raise AdjacencyError(standing.name, standing.adjacency, contract.adjacency)
    return standing


def check_plan(connection: Connection, contract: Contract) -> None:
    """Whether all rounds of a new run fit under its population's limit, beside what is spent. Can take a second.

    What other runs still plan is not counted: whichever is first may take the last of a budget.

    Raises:
        BudgetSpentError: if they do not: the run would stop in its middle, with the budget gone.
        StoreDamagedError: as ``check``.
    """
    if populations.find(connection, contract.population) is None:
        return
    population, standing = tallied(connection, contract.population)
    delta = population.delta
    if population.epsilon is None or delta is None:
        return
    planned = contract.costs(contract.rounds)
    together, accountant = filtered_of(standing, planned, population.epsilon, delta)
    if together <= population.epsilon:
        return
    name = population.name
    spent_now, _ = filtered_of(standing, (), population.epsilon, delta)
    alone = epsilon_of(planned, delta, contract.accountant)
    limit = f"{figure(population.epsilon, SET_DIGITS)} at delta {figure(delta)}"
    raise BudgetSpentError(
        f"population {name} has no room for this run: epsilon {bound(spent_now)} of a limit of {limit} is spent, its "
        f"{counted(contract.rounds, 'round')} cost {bound(alone)}, together {bound(together)} by {accountant}",
        "plan fewer rounds, a smaller epsilon or more noise (`atoll privacy plan` tells what a job costs); where more "
        f"may be promised, raise the limit with `atoll privacy limit {name} --epsilon E --delta D`",
    )


def check(
    connection: Connection,
    contract: Contract,
    run_id: str,
    version: int,
    *,
    reserved: Iterable[Event] = (),
    afresh: bool = False,
) -> None:
    """Whether train round ``version`` (from 0) of a run may be released. Can take a second: PRV adds up slowly.

    Args:
        connection: to the database.
        contract: what the run promises.
        run_id: the run.
        version: train rounds that the run has released before.
        reserved: what rounds under way of other runs in the population will cost.
        afresh: verify the whole chain, also what was verified before.

    Raises:
        BudgetSpentError: if the run's target or the population's limit would be passed.
        StoreDamagedError: if the ledger was changed on disk, or does not agree with what its runs have released.
    """
    _check_room(*tallied(connection, contract.population, afresh=afresh), contract, run_id, version, reserved)


def _check_room(
    population: Population,
    standing: Tally,
    contract: Contract,
    run_id: str,
    version: int,
    reserved: Iterable[Event] = (),
) -> None:
    cost = cost_of(contract, version)
    if cost.event is None:
        return
    _check_target(contract, standing.runs.get(run_id), run_id, version, cost.event)
    delta = population.delta
    if population.epsilon is None or delta is None:
        return
    others = tuple(reserved)

    def epsilon_with(*more: Event) -> float:
        return filtered_of(standing, more, population.epsilon, delta)[0]

    if epsilon_with(*others, cost.event) > population.epsilon:
        figures = (epsilon_with(), epsilon_with(*others), epsilon_with(*others, cost.event))
        raise _limit_passed(population, run_id, version, figures)


def record(connection: Connection, release: Release, contract: Contract, version: int) -> bool:
    """Record a private release with its charge, checked again; whether it is new. The same again changes nothing.

    Raises:
        BudgetSpentError: if the target or limit would be passed: nothing is recorded.
        RecordConflictError: (also from the writer) if the round was charged for another attempt or model.
    """
    if charges.get(connection, release.charge.run_id, release.charge.round) is None:
        population = populations.get(connection, contract.population)
        _check_room(population, tally(connection, population), contract, release.charge.run_id, version)
    return releases.record(connection, release)


def charge_of(
    contract: Contract,
    *,
    run_id: str,
    round_number: int,
    attempt: int,
    version: int,
    now: float,
    clip: float | None = None,
) -> Charge:
    """The charge for releasing train round ``version``; it gets its place in the chain when it is recorded.

    Args:
        contract: what the run promises.
        run_id: the run.
        round_number: the engine's number of the round.
        attempt: the attempt that is released.
        version: train rounds released before.
        now: epoch seconds, UTC.
        clip: norm in force in this round, where it moves.
    """
    body = cost_of(contract, version, clip=clip).as_text()
    return Charge(run_id, round_number, attempt, contract.mechanism, body, now, contract.population)


def spent(connection: Connection, population: str, *, delta: float | None = None) -> Spent:
    """What a population has spent.

    Args:
        connection: to the database.
        population: its name.
        delta: at which epsilon is told; by default that of the limit, or of the strictest run.

    Raises:
        RecordMissingError: there is no such population.
        StoreDamagedError: if the ledger was changed on disk, or does not agree with what its runs have released.
    """
    return told(*tallied(connection, population), delta=delta)


def tallied(connection: Connection, population: str, *, afresh: bool = False) -> tuple[Population, Tally]:
    """What ``told`` wants, read from the database. Raises as ``spent``."""
    row = populations.find(connection, population)
    if row is None:
        if population in reconciling.named(connection):
            raise damaged(population, "it is not on record, though runs name it")
        raise RecordMissingError("population", population)
    found = tally(connection, row, afresh=afresh)
    charged = {run.run_id: run.releases for run in found.runs.values()}
    if why := reconciling.disagreement(connection, population, charged):
        raise damaged(population, why)
    return row, found


def names(connection: Connection) -> tuple[str, ...]:
    """Every population, also one whose record is damaged or gone."""
    return tuple(sorted({*populations.names(connection), *reconciling.named(connection)}))


def told(population: Population, charged: Tally, *, delta: float | None = None) -> Spent:
    """As ``spent``, without the database: adding up takes a tenth of a second for each run under PRV."""
    chosen = delta or delta_of(population, charged)
    limit = population.epsilon if chosen == population.delta else None
    epsilon, accountant = (0.0, NO_ACCOUNT) if chosen is None else filtered_of(charged, (), limit, chosen)
    return Spent(population, epsilon, chosen, accountant, tuple(map(_run_spent, charged.runs.values())))


def course(before: Sequence[Charge], found: Sequence[Charge]) -> list[float]:
    """A run's epsilon after each of the charges ``found``, which follow those ``before``; all are of that run.

    Raises:
        StoreDamagedError: if one cannot be read.
    """
    standing: RunTally | None = None
    after = []
    for number, charge in enumerate((*before, *found)):
        standing = RunTally.of(charge) if standing is None else standing.plus(charge)
        if number >= len(before):
            after.append(_run_spent(standing).epsilon)
    return after


def filtered_of(standing: Tally, more: Iterable[Event], limit: float | None, delta: float) -> tuple[float, Accountant]:
    """Epsilon of a population's charges with further events, by its filter, and what has added them up."""
    events = (*standing.events, *more)
    first = standing.first or next(iter(events), None)
    return (0.0, NO_ACCOUNT) if first is None else _filtered(first, accounting.merged(events), limit, delta)


def delta_of(population: Population, found: Tally) -> float | None:
    """At which delta a population's epsilon is told: see ``Spent``."""
    if population.delta is not None:
        return population.delta
    return min((run.delta for run in found.runs.values()), default=None)


def epsilon_of(events: Iterable[Event], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of these events together."""
    together = accounting.merged(events)
    return _accounted(together, delta, accountant) if together else 0.0


def set_limit(
    connection: Connection,
    name: str,
    limit: tuple[float, float] | None,
    *,
    operator: str,
    now: float,
    adjacency: Adjacency | None = None,
) -> Population:
    """Limit what a population's runs may spend together, or take the limit away. Rounds under way are checked again.

    Args:
        connection: to the database.
        name: the population.
        limit: (epsilon, delta), or None for no limit. Below what is spent it stops every further round that
            costs anything.
        operator: who wants it.
        now: epoch seconds, UTC.
        adjacency: begin the population with it if it does not exist yet.

    Raises:
        InvalidRequestError: for a limit out of bounds.
        RecordMissingError: there is no such population, and no adjacency was given to begin it with.
        AdjacencyError: if there is one, with another adjacency.
    """
    epsilon, delta = (None, None) if limit is None else _require_limit(*limit)
    standing = populations.find(connection, name)
    if standing is None:
        if adjacency is None:
            remedy = "`atoll privacy ledger` lists them; to limit one before its first run, say --create add_remove"
            raise RecordMissingError("population", name, remedy)
        if not re.fullmatch(POPULATION_PATTERN, name):
            remedy = "use up to 63 lower-case letters, digits, dots, dashes or underscores"
            raise InvalidRequestError("privacy.limit", f"{name[:80]!r} is no name of a population", remedy)
        standing = populations.add(connection, name, adjacency, now)
    elif adjacency not in (None, standing.adjacency):
        raise AdjacencyError(name, standing.adjacency, str(adjacency))
    changed = replace(standing, epsilon=epsilon, delta=delta, limited_by=operator, limited_at=now)
    populations.put(connection, changed)
    return changed


def flaws(connection: Connection) -> dict[str, str]:
    """Verify every population's ledger from its beginning: what is wrong, by population; nothing for those in order."""
    found: dict[str, str] = {}
    for name in names(connection):
        try:
            tallied(connection, name, afresh=True)
        except StoreDamagedError as error:
            found[name] = error.detail.message
    return found


def _require_limit(epsilon: float, delta: float) -> tuple[float, float]:
    if not (0 < epsilon <= MAX_EPSILON and MIN_DELTA <= delta <= MAX_DELTA):
        raise InvalidRequestError(
            "privacy.limit",
            f"epsilon {epsilon:g}, delta {delta:g}: not a limit",
            f"give an epsilon above 0 and up to {MAX_EPSILON:g}, and a delta from {MIN_DELTA:g} to {MAX_DELTA:g}, "
            "far below 1 / participants",
        )
    return epsilon, delta


def _check_target(contract: Contract, standing: RunTally | None, run_id: str, version: int, added: Event) -> None:
    if contract.epsilon is None:
        return
    charged = () if standing is None else standing.events
    after, planned = accounting.merged((*charged, added)), accounting.merged(contract.costs(contract.rounds))
    if _within(after, planned):  # so is the run as a whole, which the noise was made for
        after = planned
    would_be = epsilon_of(after, contract.delta, contract.accountant)
    if would_be > contract.epsilon:
        spent_now = epsilon_of(charged, contract.delta, contract.accountant)
        target = f"target of {figure(contract.epsilon, SET_DIGITS)} at delta {figure(contract.delta)}"
        raise BudgetSpentError(
            f"the privacy budget of run {run_id} has no room for the next round: epsilon {bound(spent_now)} of its "
            f"{target} is spent, its round {version + 1} would make it {bound(would_be)}",
            "nothing raises what a run has promised: cancel it, its models stay, and submit another for further "
            "rounds, whose cost is the population's as well",
        )


def _within(events: Iterable[Event], planned: Iterable[Event]) -> bool:
    """Whether the events cost no more than those planned, kind by kind; noise may differ by what floats lose."""
    room = {(event.sampling, event.sample_rate): event for event in planned}
    return all(
        (plan := room.get((event.sampling, event.sample_rate))) is not None
        and event.count <= plan.count
        and event.noise_multiplier >= plan.noise_multiplier * (1 - _FLOAT_ERROR)
        for event in events
    )


@lru_cache(maxsize=4096)
def _accounted(events: tuple[Event, ...], delta: float, accountant: Accountant) -> float:
    return accounting.epsilon(events, delta, accountant)


@lru_cache(maxsize=4096)
def _filtered(first: Event, events: tuple[Event, ...], limit: float | None, delta: float) -> tuple[float, Accountant]:
    return accounting.filtered(first, events, limit, delta)


def _run_spent(run: RunTally) -> RunSpent:
    epsilon = epsilon_of(run.events, run.delta, run.accountant)
    answered = accounting.answered_by(run.events, run.delta, run.accountant)
    return RunSpent(run.run_id, epsilon, run.delta, answered, run.target, run.releases, run.first_at, run.last_at)


def _limit_passed(
    population: Population, run_id: str, version: int, figures: tuple[float, float, float]
) -> BudgetSpentError:
    spent_now, under_way, after = figures
    name = population.name
    limit = f"a limit of {figure(population.epsilon, SET_DIGITS)} at delta {figure(population.delta)}"
    waiting = f" ({bound(under_way)} with rounds under way)" if under_way > spent_now else ""
    return BudgetSpentError(
        f"the privacy budget of population {name} has no room for the next round: epsilon {bound(spent_now)}{waiting} "
        f"of {limit} is spent, round {version + 1} of run {run_id} would make it {bound(after)}",
        f"`atoll privacy ledger --population {name}` shows what spent it; where more may be promised, raise it with "
        f"`atoll privacy limit {name} --epsilon E --delta D`, then `atoll run resume {run_id}`; where not, plan "
        "another run with fewer rounds, more noise or a larger population",
    )
