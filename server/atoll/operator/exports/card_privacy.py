"""The section of a model card on differential privacy, in words, with bounds rounded to the safe side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atoll.operator.exports.markup import plain, table
from atoll.text.figures import bound, figure

if TYPE_CHECKING:
    from atoll.operator.ledger import RunLedger


def privacy_section(ledger: RunLedger | None) -> Iterator[str]:
    """The section ``## Privacy``: the guarantee of a private run, or that a run without a ledger guarantees nothing."""
    yield "## Privacy\n"
    if ledger is None:
        yield (
            "The server added no noise: this model has no central differential privacy, and may reveal facts about "
            "the data that it was trained on. What participants did on their own is not known here.\n"
        )
        return
    yield from _guarantee(ledger)


def _guarantee(ledger: RunLedger) -> Iterator[str]:
    population, spending = ledger.population, ledger.spending
    if population.flaw or spending is None:
        why = "its ledger is damaged" if population.flaw else "nothing was charged yet"
        yield f"The job asked for differential privacy, but no bound can be stated: {why}.\n"
        return
    yield (
        f"The run is differentially private with epsilon at most {bound(spending.epsilon)} at delta "
        f"{figure(spending.delta)}. Protected is one {plain(population.unit)} with everything that it sent, under "
        f"{plain(population.adjacency)} adjacency: its part in the run changes the probability of any release by at "
        "most the factor exp(epsilon), plus delta.\n"
    )
    yield table(("", ""), _account(ledger))
    yield "The bound covers all models that the run released, not only this one.\n"


def _account(ledger: RunLedger) -> Iterator[tuple[str, str]]:
    population, spending = ledger.population, ledger.spending
    charges = [one for one in ledger.charges if not one.flaw]
    if spending is not None:
        yield "epsilon", bound(spending.epsilon)
        yield "delta", figure(spending.delta)
        yield "releases", str(spending.releases)
        yield "accountant", plain(spending.accountant)
    yield "unit", plain(population.unit)
    yield "mechanism", plain(", ".join(sorted({one.mechanism for one in charges})))
    noise = [one.noise_multiplier for one in charges if one.noise_multiplier is not None]
    if noise:
        yield "noise multiplier", _span(noise)
    if charges:
        yield "clip norm", _span([one.clip for one in charges])
    if population.epsilon > (0.0 if spending is None else spending.epsilon):
        yield (
            "all runs over the same participants",
            f"epsilon {bound(population.epsilon)} at delta {figure(population.delta)}",
        )


def _span(values: list[float]) -> str:
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low} to {high}"
