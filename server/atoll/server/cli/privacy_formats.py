"""The privacy ledger as table rows and lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atoll.server.cli.output import when
from atoll.server.control import (
    ChargeSummary,
    ParticipantPrivacy,
    ParticipantRun,
    PopulationSummary,
    RunSpending,
)
from atoll.text.figures import SET_DIGITS, bound, counted, figure, remainder

if TYPE_CHECKING:
    from atoll.server.privacy.chain import Flaw

POPULATION_COLUMNS = (
    "population",
    "spent>",
    "at delta>",
    "limit>",
    "left>",
    "releases>",
    "runs>",
    "adjacency",
    "accountant",
    "head",
)
RUN_COLUMNS = ("run", "name", "spent>", "at delta>", "target>", "releases>", "accountant", "first", "last")
CHARGE_COLUMNS = ("round>", "noise>", "rate>", "sampling", "clip>", "spent by then>", "charged at")
PART_COLUMNS = ("run", "name", "population", "drawn for>", "counted in>", "releases>")


def population_row(item: PopulationSummary) -> tuple[object, ...]:
    """A row of the overview."""
    if item.flaw:
        return (item.population, *("?" for _ in POPULATION_COLUMNS[1:-1]), "damaged")
    return (
        item.population,
        bound(item.epsilon) if item.charges else "nothing",
        figure(item.delta),
        figure(item.limit_epsilon, SET_DIGITS),
        remainder(item.left),
        item.charges,
        len(item.runs),
        item.adjacency,
        item.accountant,
        item.head,
    )


def population_line(item: PopulationSummary) -> str:
    """A population in words."""
    if item.flaw:
        parts = f"{counted(item.charges, 'charge')} of {counted(len(item.runs), 'run')}"
        return f"{item.flaw}\nreadable: {parts}, which give no bound on the privacy loss"
    if not item.charges:
        return _unspent(item)
    spent = f"epsilon {bound(item.epsilon)}" + ("" if item.delta is None else f" at delta {figure(item.delta)}")
    left = "" if item.limit_epsilon is None else f"{remainder(item.left)} left of "
    parts = f"{counted(item.charges, 'release')} of {counted(len(item.runs), 'run')}"
    return (
        f"population {item.population}: {spent} spent in {parts}; {left}{_limit(item)}\n"
        f"protects one {item.unit}, under {item.adjacency} adjacency; accountant {item.accountant}\n"
        f"head {item.head}"
    )


def _unspent(item: PopulationSummary) -> str:
    return (
        f"population {item.population}: nothing was charged yet; {_limit(item)}\n"
        f"protects one {item.unit}, under {item.adjacency} adjacency\nhead {item.head}"
    )


def _limit(item: PopulationSummary) -> str:
    limit = "there is no limit"
    if item.limit_epsilon is not None:
        limit = f"a limit of {figure(item.limit_epsilon, SET_DIGITS)} at delta {figure(item.limit_delta)}"
    return limit + (f", set by {item.limited_by} on {when(item.limited_at)}" if item.limited_by else "")


def run_row(item: RunSpending) -> tuple[object, ...]:
    """The row of a population's run."""
    return (
        item.run,
        item.name or "(deleted)",
        bound(item.epsilon),
        figure(item.delta),
        figure(item.target, SET_DIGITS),
        item.releases,
        item.accountant,
        when(item.first_at),
        when(item.last_at),
    )


def run_line(item: RunSpending, population: PopulationSummary) -> str:
    """A run in words."""
    if population.flaw:
        return (
            f"run {item.run} ({item.name or 'deleted'}): {counted(item.releases, 'charge')} can be read, but there is "
            f"no bound: the ledger of population {population.population} is damaged"
        )
    target = "" if item.target is None else f" of its target of {figure(item.target, SET_DIGITS)}"
    return (
        f"run {item.run} ({item.name or 'deleted'}): epsilon {bound(item.epsilon)}{target} at delta "
        f"{figure(item.delta)}, by {item.accountant}, in {counted(item.releases, 'release')}; "
        f"population {population.population}"
    )


def charge_row(item: ChargeSummary) -> tuple[object, ...]:
    """The row of a run's charged round."""
    if item.flaw:
        return ("?", "cannot be read", *("?" for _ in CHARGE_COLUMNS[2:]))
    return (
        item.version + 1,
        "adds nothing" if item.noise_multiplier is None else figure(item.noise_multiplier),
        figure(item.sample_rate) if item.sampling else "",
        item.sampling.replace("_", " "),
        figure(item.clip),
        bound(item.epsilon_after),
        when(item.charged_at),
    )


def part_row(item: ParticipantRun) -> tuple[object, ...]:
    """The row of a participant's part in a run."""
    population = item.population or "none: released without privacy"
    return (item.run, item.name, population, item.drawn, item.counted, item.releases)


def participant_lines(item: ParticipantPrivacy) -> Iterator[str]:
    """A participant's privacy, in words."""
    yield f"participant {item.participant} ({item.organisation})"
    for population in item.populations:
        if not (population.charges or population.flaw):
            yield f"  population {population.population}: nothing was released yet"
            continue
        yield population.flaw or (
            f"  population {population.population}: the participant's privacy loss is at most epsilon "
            f"{bound(population.epsilon)} at delta {figure(population.delta)}"
        )
    if len(item.populations) > 1:
        yield f"  together: at most epsilon {bound(item.epsilon)} at delta {figure(item.delta)}"
    if item.unprotected:
        yield f"  runs without privacy used its updates: {', '.join(item.unprotected)}; nothing is promised about these"
    if item.unknown:
        yield f"  deleted runs may have selected it: see population {', '.join(item.unknown)}"
    if item.truncated:
        yield "  older runs are not shown"


def flaw_line(file: str, flaw: Flaw) -> str:
    """A flaw with its position, as a line."""
    return f"{file}:{flaw.line}: {flaw.what}" if flaw.line else f"{file}: {flaw.what}"


def flaw_values(flaw: Flaw) -> dict[str, object]:
    """A flaw as JSON values; line 0 is the file as a whole."""
    return {"line": flaw.line, "what": flaw.what}
