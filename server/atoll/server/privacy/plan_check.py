"""Whether all rounds of a new run fit under its population's limit; if not, where it would stop, and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sqlalchemy import Connection

from atoll.accounting import TargetUnreachableError, least_noise
from atoll.server.privacy import accounting
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.errors import BudgetSpentError
from atoll.server.privacy.ledger import epsilon_of, filtered_of, tallied
from atoll.server.stores import Population, populations
from atoll.text.figures import SET_DIGITS, bound, counted, figure

FLOAT_ROOM = 1e-9
"""Share of a limit that a plan must leave for rounding: the sum of single rounds may differ from the plan."""


def check_plan(connection: Connection, contract: Contract) -> None:
    """Check that all rounds of a new run fit in what is left of its population's limit. Can take seconds.

    Planned rounds of other runs are not counted: the run that is first may spend the rest of the budget.

    Raises:
        BudgetSpentError: if they do not fit; says at which round the run would stop, how many rounds would fit, and
            with which noise all would.
        StoreDamagedError: as for ``ledger.check``.
    """
    if populations.find(connection, contract.population) is None:
        return
    population, standing = tallied(connection, contract.population)
    if population.epsilon is None or population.delta is None:
        return
    limit, delta = population.epsilon * (1 - FLOAT_ROOM), population.delta

    def after(rounds: int, planned: Contract = contract) -> float:
        return filtered_of(standing, planned.costs(rounds), delta)[0]

    if after(contract.rounds) > limit:
        accountant = filtered_of(standing, contract.costs(contract.rounds), delta)[1]
        fits = rounds_that_fit(after, contract.rounds, limit)
        noise = _noise_that_fits(contract, after, limit)
        raise _no_room(population, contract, (after(0), after(contract.rounds)), accountant, fits, noise)


def rounds_that_fit(after: Callable[[int], float], rounds: int, limit: float) -> int:
    """The largest number of rounds, below ``rounds``, that stays within ``limit``; -1 if it is already exceeded."""
    low, high = -1, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if after(middle) <= limit else (low, middle)
    return low


def _noise_that_fits(contract: Contract, after: Callable[[int, Contract], float], limit: float) -> float | None:
    """The least noise multiplier with which all rounds fit; None if no noise is enough."""

    def cost(noise: float) -> float:
        # Released counts take their share of it: the job gives the noise of a release as a whole.
        return after(contract.rounds, replace(contract, noise_multiplier=noise, adaptive=None, report_noise=None))

    try:
        return least_noise(cost, limit)
    except TargetUnreachableError:
        return None


def _no_room(
    population: Population,
    contract: Contract,
    spent: tuple[float, float],
    accountant: str,
    fits: int,
    noise: float | None,
) -> BudgetSpentError:
    name, rounds = population.name, contract.rounds
    alone = epsilon_of(accounting.merged(contract.costs(rounds)), population.delta or 0.0, contract.accountant)
    limit = f"{figure(population.epsilon, SET_DIGITS)} at delta {figure(population.delta)}"
    stops = f"; the limit would be passed at round {max(fits, 0) + 1} of {rounds}"
    remedies = list(_remedies(contract, fits, noise))
    return BudgetSpentError(
        f"population {name} has no room for this run: epsilon {bound(spent[0])} of a limit of {limit} is spent, its "
        f"{counted(rounds, 'round')} cost {bound(alone)}, together {bound(spent[1])} by {accountant}{stops}",
        f"{'; '.join([*remedies, ''])}`atoll privacy plan` shows what a job costs; where more may be promised, raise "
        f"the limit with `atoll privacy limit {name} --epsilon E --delta D`",
    )


def _remedies(contract: Contract, fits: int, noise: float | None) -> Iterator[str]:
    if fits > 0:
        given = f" with privacy.noise_multiplier = {bound(contract.accounted_noise, SET_DIGITS)} instead of epsilon"
        rounds = counted(fits, "round fits", "rounds fit")
        yield f"{rounds}{'' if contract.epsilon is None else given}: set job.rounds = {fits}"
    if noise is not None:
        before = figure(contract.accounted_noise, SET_DIGITS)
        yield f"all rounds fit with privacy.noise_multiplier = {bound(noise, SET_DIGITS)} instead of {before}"
