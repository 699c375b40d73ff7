"""The ledger: the privacy that each population has spent, and the check whether a round may spend more.

A run's accountant composes the run's own cost: its noise and its rounds are fixed when it is submitted. One privacy
filter composes all charges of a population (``atoll.accounting.filtering``), because later runs may be chosen in view
of earlier releases. A round that would spend too much does not start (``check``), and a charge is checked again in the
transaction that releases (``record``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import Connection

from atoll.accounting import Accountant
from atoll.server.errors import InvalidRequestError
from atoll.server.jobs.privacy_section import MAX_DELTA, MIN_DELTA, POPULATION_PATTERN
from atoll.server.privacy import accounting, reconciling
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import AdjacencyError, BudgetSpentError
from atoll.server.privacy.events import Adjacency, Event
from atoll.server.privacy.tally import RunTally, Tally, cost_of, damaged, tally
from atoll.server.stores import Charge, Population, RecordMissingError, Release, StoreDamagedError, charges, populations
from atoll.server.stores import release as releases
from atoll.server.stores.projects import MAX_POPULATION_CHARS
from atoll.text.figures import SET_DIGITS, bound, figure

MAX_EPSILON = 1000.0
"""Maximum limit: a larger epsilon gives no meaningful protection."""
NO_ACCOUNT: Accountant = "rdp"
"""The accountant that is shown before anything is charged."""
_FLOAT_ERROR = 1e-9
"""Relative tolerance, since charges of correlated noise are differences of sums."""


@dataclass(frozen=True)
class RunSpent:
    """One run's spending: epsilon at its ``delta``; ``target`` is the epsilon that it promised.

    ``accountant`` is the one that gave the answer: the run's own, or ``rdp`` where ``prv`` has no answer or a larger
    one.
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
    """A population's spending: epsilon at ``delta``, by ``accountant``; runs in the order of their first charge.

    ``delta`` is the limit's or, without a limit, the smallest of the population's runs; None if nothing is charged.
    """

    population: Population
    epsilon: float
    delta: float | None
    accountant: Accountant
    runs: tuple[RunSpent, ...]

    @property
    def left(self) -> float | None:
        """Epsilon left of the limit; None without a limit."""
        return None if self.population.epsilon is None else max(0.0, self.population.epsilon - self.epsilon)


def enrol(connection: Connection, contract: Contract, now: float) -> Population:
    """The population of a new run, created for its first run; part of the transaction that submits the run.

    Raises:
        AdjacencyError: if the population's other runs promise another adjacency.
    """
    standing = populations.find(connection, contract.population)
    if standing is None:
        return populations.add(connection, contract.population, contract.adjacency, now)
    if standing.adjacency != contract.adjacency:
        raise AdjacencyError(standing.name, standing.adjacency, contract.adjacency)
    return standing


def check(
    connection: Connection,
    contract: Contract,
    run_id: str,
    version: int,
    *,
    reserved: Iterable[Event] = (),
    afresh: bool = False,
) -> None:
    """Check that train round ``version`` (from 0) of a run may be released. Can take a second under PRV.

    Args:
        connection: to the database.
        contract: the run's contract.
        run_id: the run.
        version: train rounds that the run has released before.
        reserved: costs of the live rounds of the population's other runs.
        afresh: verify the whole chain, including parts that were verified before.

    Raises:
        BudgetSpentError: if the run's target or the population's limit would be exceeded.
        StoreDamagedError: if the ledger was altered on disk, or disagrees with the releases of its runs.
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
        return filtered_of(standing, more, delta)[0]

    if epsilon_with(*others, cost.event) > population.epsilon:
        figures = (epsilon_with(), epsilon_with(*others), epsilon_with(*others, cost.event))
        raise _limit_passed(population, run_id, version, figures)


def record(connection: Connection, release: Release, contract: Contract, version: int) -> bool:
    """Record a private release with its charge, checked again; returns whether it is new. Idempotent.

    Raises:
        BudgetSpentError: if the target or limit would be exceeded; nothing is recorded.
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
        contract: the run's contract.
        run_id: the run.
        round_number: the engine's number of the round.
        attempt: the released attempt.
        version: train rounds released before.
        now: epoch seconds, UTC.
        clip: this round's clip norm, if clipping is adaptive.
    """
    body = cost_of(contract, version, clip=clip).as_text()
    return Charge(run_id, round_number, attempt, contract.mechanism, body, now, contract.population)


def spent(connection: Connection, population: str, *, delta: float | None = None) -> Spent:
    """A population's spending.

    Args:
        connection: to the database.
        population: its name.
        delta: delta of the answer; by default the limit's, or the smallest of the runs.

    Raises:
        RecordMissingError: there is no such population.
        StoreDamagedError: if the ledger was altered on disk, or disagrees with the releases of its runs.
    """
    return spent_by(*tallied(connection, population), delta=delta)


def tallied(connection: Connection, population: str, *, afresh: bool = False) -> tuple[Population, Tally]:
    """Read the population and its tally, the input of ``spent_by``. Raises what ``spent`` raises."""
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
    """Every population, even one whose record is damaged or lost."""
    return tuple(sorted({*populations.names(connection), *reconciling.named(connection)}))


def spent_by(population: Population, charged: Tally, *, delta: float | None = None) -> Spent:
    """Like ``spent``, without the database. Takes a tenth of a second for each run under PRV."""
    chosen = delta or delta_of(population, charged)
    epsilon, accountant = (0.0, NO_ACCOUNT) if chosen is None else filtered_of(charged, (), chosen)
    return Spent(population, epsilon, chosen, accountant, tuple(map(_run_spent, charged.runs.values())))


def epsilon_course(before: Sequence[Charge], found: Sequence[Charge]) -> list[float]:
    """A run's epsilon after each of the charges ``found``, which come after its charges ``before``.

    Raises:
        StoreDamagedError: if a charge cannot be read.
    """
    standing: RunTally | None = None
    after = []
    for number, charge in enumerate((*before, *found)):
        standing = RunTally.of(charge) if standing is None else standing.plus(charge)
        if number >= len(before):
            after.append(_run_spent(standing).epsilon)
    return after


def filtered_of(standing: Tally, more: Iterable[Event], delta: float) -> tuple[float, Accountant]:
    """Epsilon of a population's charges and further events, by its filter, and the accountant of the answer."""
    events = accounting.merged((*standing.events, *more))
    return _filtered(events, delta) if events else (0.0, NO_ACCOUNT)


def delta_of(population: Population, found: Tally) -> float | None:
    """The delta of a population's epsilon: see ``Spent``."""
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
    """Set or remove the limit on a population's total spending. Live rounds are checked again.

    Args:
        connection: to the database.
        name: the population.
        limit: (epsilon, delta), or None for no limit. A limit below the spent budget stops every further round that has
            a cost.
        operator: the operator who sets it.
        now: epoch seconds, UTC.
        adjacency: if the population does not exist yet, create it with this adjacency.

    Raises:
        InvalidRequestError: for a limit out of bounds.
        RecordMissingError: if there is no such population, and no adjacency to create it with.
        AdjacencyError: if the population has another adjacency.
    """
    epsilon, delta = (None, None) if limit is None else _require_limit(*limit)
    standing = populations.find(connection, name)
    if standing is None:
        if adjacency is None:
            remedy = "`atoll privacy ledger` lists them; to limit one before its first run, add --create"
            raise RecordMissingError("population", name, remedy)
        if not re.fullmatch(POPULATION_PATTERN, name.partition("/")[2] or name) or len(name) > MAX_POPULATION_CHARS:
            remedy = "use up to 63 lower-case letters, digits, dots, dashes or underscores"
            raise InvalidRequestError("privacy.limit", f"{name[:80]!r} is not a valid population name", remedy)
        standing = populations.add(connection, name, adjacency, now)
    elif adjacency not in (None, standing.adjacency):
        raise AdjacencyError(name, standing.adjacency, str(adjacency))
    changed = replace(standing, epsilon=epsilon, delta=delta, limited_by=operator, limited_at=now)
    populations.put(connection, changed)
    return changed


def flaws(connection: Connection) -> dict[str, str]:
    """Verify every population's ledger from its beginning; returns the flaw of each damaged one, by population."""
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
    if _within(after, planned):  # then the whole run is within the target, since the noise is calibrated for it
        after = planned
    would_be = epsilon_of(after, contract.delta, contract.accountant)
    if would_be > contract.epsilon:
        spent_now = epsilon_of(charged, contract.delta, contract.accountant)
        target = f"target of {figure(contract.epsilon, SET_DIGITS)} at delta {figure(contract.delta)}"
        raise BudgetSpentError(
            f"the privacy budget of run {run_id} has no room for the next round: epsilon {bound(spent_now)} of its "
            f"{target} is spent, its round {version + 1} would make it {bound(would_be)}",
            "a run's promise cannot be raised: cancel it (its models stay), and submit another run for further "
            "rounds, whose cost is charged to the population as well",
        )


def _within(events: Iterable[Event], planned: Iterable[Event]) -> bool:
    """Whether the events cost no more than the planned events, kind by kind, up to float error of the noise."""
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
def _filtered(events: tuple[Event, ...], delta: float) -> tuple[float, Accountant]:
    return accounting.filtered(events, delta)


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
