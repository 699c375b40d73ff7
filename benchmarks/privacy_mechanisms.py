"""Noise on prefix sums by mechanism, relative to independent noise with the same privacy; computed, not timed.

Root mean square over the rounds (``privacy.mechanisms.prefix_error``), with the charged sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from atoll.server.privacy.mechanisms.optimising import best_strategy
from atoll.server.privacy.mechanisms.prefix_error import relative_error
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients, inverse_column, tree_squares
from atoll.text.figures import counted
from benchmarks.figures import Figure
from benchmarks.options import Options

SETTINGS = ((120, 120, 1), (120, 12, 10), (256, 64, 4), (1024, 1024, 1), (2000, 342, 6), (2000, 1, 6))
"""(rounds, minimum separation between participations, maximum number of participations)."""
TARGETS = {(1024, 1024, 1): 0.1355, (2000, 342, 6): 0.1185}
"""Published figures for BLT."""
BANDS = (16, 32, 64)


def run(options: Options) -> list[Figure]:
    """The case for ``python -m benchmarks privacy-mechanisms``."""
    settings = SETTINGS[:1] if options.smoke else SETTINGS
    return [one for setting in settings for one in _figures(*setting, options.command("privacy-mechanisms"))]


def _figures(rounds: int, separation: int, most: int, command: str) -> Iterator[Figure]:
    case = f"{rounds} rounds, {most} of one participant, {separation} apart"
    yield Figure.stated(f"{case}: tree", tree_error(rounds, separation, most), "", command)
    for bands in BANDS:
        if bands <= separation:
            yield Figure.stated(f"{case}: {bands} bands", banded_error(bands, rounds, separation, most), "", command)
    strategy = best_strategy(rounds, separation, most)
    error = relative_error(strategy.coefficients(rounds), strategy.inverse(rounds), separation, most)
    name, target = f"{case}: BLT, {counted(strategy.buffers, 'buffer')}", TARGETS.get((rounds, separation, most))
    if target is None:
        yield Figure.stated(name, error, "", command)
    else:
        yield Figure.at_most(name, error, "", target, command)


def banded_error(bands: int, rounds: int, separation: int, most: int) -> float:
    """The relative prefix-sum error of a banded matrix."""
    column = np.zeros(rounds)
    coefficients = banded_coefficients(bands)[:rounds]
    column[: len(coefficients)] = coefficients
    return relative_error(column, inverse_column(np.array(coefficients), rounds), separation, most)


def tree_error(rounds: int, separation: int, most: int) -> float:
    """The relative prefix-sum error of the tree: a prefix sums as many nodes as its round number has bits set."""
    nodes = sum(number.bit_count() for number in range(1, rounds + 1)) / rounds
    moved = float(tree_squares(rounds, separation, most)[-1])
    return math.sqrt(nodes * moved / ((rounds + 1) / 2 * min(most, -(-rounds // separation))))
