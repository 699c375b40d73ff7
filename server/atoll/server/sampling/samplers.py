"""The samplers: each a pure function from a request to the chosen participants.

A request has the eligible participants sorted by id, so that the order in which they connected does not matter.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from atoll.server.sampling.availability import chance_to_report
from atoll.server.sampling.draw_request import DrawRequest, Eligible
from atoll.server.sampling.streams import raw_stream, unit_interval


def _raw(sampler: str, request: DrawRequest) -> npt.NDArray[np.uint64]:
    return raw_stream(sampler, request.seed, request.round, request.attempt, len(request.eligible))


def uniform(request: DrawRequest) -> tuple[Eligible, ...]:
    """Draw `size` of the eligible without replacement; every subset is equally likely.

    Each gets a random 64-bit ticket and the smallest tickets win: the head of a uniformly random permutation.
    """
    everyone = request.eligible
    ranked = np.argsort(_raw("uniform", request), kind="stable")[: request.size]
    return tuple(everyone[i] for i in sorted(ranked))


def poisson(request: DrawRequest) -> tuple[Eligible, ...]:
    """Draw each of the eligible independently with the same probability; the cohort's size is random and may be 0."""
    everyone = request.eligible
    if not everyone:
        return ()
    rate = min(1.0, request.size / len(everyone)) if request.rate is None else request.rate
    chosen = unit_interval(_raw("poisson", request)) < rate
    return tuple(e for e, taken in zip(everyone, chosen, strict=True) if taken)


def weighted(request: DrawRequest) -> tuple[Eligible, ...]:
    """Draw `size` of the eligible without replacement, in proportion to their declared examples."""
    everyone = request.eligible
    weights = np.array([max(1, e.examples) for e in everyone], np.float64)
    return _exponential_race(everyone, weights, _raw("weighted", request), request.size)


def least_recent(request: DrawRequest) -> tuple[Eligible, ...]:
    """Draw the `size` participants drawn longest ago, never-drawn first; break ties by fewest draws, then at random."""
    everyone = request.eligible
    tickets = _raw("least_recent", request)

    def waited(i: int) -> tuple[float, int, int]:
        known = request.known(everyone[i].participant)
        last = float("-inf") if known.last_selected_at is None else known.last_selected_at
        return last, known.times_selected, int(tickets[i])

    ranked = sorted(range(len(everyone)), key=waited)[: request.size]
    return tuple(everyone[i] for i in sorted(ranked))


def availability(request: DrawRequest) -> tuple[Eligible, ...]:
    """Draw `size` of the eligible without replacement, in proportion to their probability of reporting in time."""
    everyone = request.eligible
    chances = [chance_to_report(request.known(e.participant), request.at, request.window_s) for e in everyone]
    return _exponential_race(everyone, np.array(chances, np.float64), _raw("availability", request), request.size)


def _exponential_race(
    everyone: Sequence[Eligible], weights: npt.NDArray[np.float64], raw: npt.NDArray[np.uint64], size: int
) -> tuple[Eligible, ...]:
    """Weighted sampling without replacement by one key for each (Efraimidis and Spirakis 2006, algorithm A).

    Their key u**(1/w), largest first, orders as the exponential waiting time -ln(u)/w, smallest first, which does not
    underflow. For a draw of one, inclusion is proportional to the weights; when many are drawn, heavy participants get
    less than that.
    """
    waits = -np.log1p(-unit_interval(raw)) / weights
    ranked = np.argsort(waits, kind="stable")[:size]
    return tuple(everyone[i] for i in sorted(ranked))
