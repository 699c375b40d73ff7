"""The definition's distribution, in exact arithmetic, against that of the discrete Gaussian."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from atoll.server.privacy.noise import STATISTICAL_DISTANCE, discrete, settling
from atoll.server.privacy.noise.settling import MAX_ATTEMPTS, NoiseExhaustedError, settle
from atoll.server.privacy.noise.tables import (
    AGAIN,
    COIN_BITS,
    DONE,
    MIXED,
    REACH,
    SHORT_COIN_BITS,
    UNCLEAR,
    UNIFORM_BITS,
    Tables,
    tables_of,
)

CONTEXT = decimal.Context(prec=90, Emin=-decimal.MAX_EMAX)
KEY = bytes(range(32))


def weight(exponent: Fraction) -> Decimal:
    return CONTEXT.exp(CONTEXT.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))


def block_chance(tables: Tables, block: int) -> Fraction:
    """The probability of a block by the definition: the last block's threshold is 2**192."""
    ends = (0, *tables.thresholds, 1 << UNIFORM_BITS)
    return Fraction(ends[block + 1] - ends[block], 1 << UNIFORM_BITS)


@pytest.mark.parametrize("sigma", [0.0625, 0.5, 1.0, 2.7, 40.0, 63.99])
def test_small_sigmas_distance_to_the_discrete_gaussian(sigma: float) -> None:
    """Total variation over all integers, magnitudes twice: the weights from scratch, summed to 20 sigma."""
    tables = tables_of(sigma)
    reach = max(2, math.ceil(20 * sigma))
    with decimal.localcontext(CONTEXT):
        weights = [weight(tables.rate * m * m) * (1 if m == 0 else 2) for m in range(reach)]
        total = sum(weights, Decimal(0))
        distance = Decimal(0)
        for m in range(reach):
            chance = block_chance(tables, m) if m <= len(tables.thresholds) else Fraction(0)
            distance += abs(Decimal(chance.numerator) / Decimal(chance.denominator) - weights[m] / total)
        assert distance / 2 < Decimal(STATISTICAL_DISTANCE)


@pytest.mark.parametrize("sigma", [64.0, 100.3, 1.3 * 2.0**33, 2.0**50])
def test_large_sigmas_atoms_to_the_discrete_gaussians(sigma: float) -> None:
    """P(m) is in proportion to its block's chance times exp(-(m**2 - start**2) / (2 sigma**2)): for m across blocks.

    Ratios to the weight of an atom of block 0 are compared, to a relative 2**-128.
    """
    tables = tables_of(sigma)
    low_bits = tables.low_bits
    first = block_chance(tables, 0)
    for block in (0, 1, 5, 60, 150, 290):
        for low in (0, 1, (1 << low_bits) - 1):
            magnitude = (block << low_bits) + low
            start = block << low_bits
            accepted = weight(tables.rate * (magnitude**2 - start**2))
            chance = block_chance(tables, block) / first
            with decimal.localcontext(CONTEXT):
                found = Decimal(chance.numerator) / Decimal(chance.denominator) * accepted
                assert abs(found / weight(tables.rate * magnitude**2) - 1) < Decimal(2) ** -128


@pytest.mark.parametrize("sigma", [64.0, 2.0**50])
def test_coins_are_compared_with_the_exact_exponential(sigma: float) -> None:
    tables = tables_of(sigma)
    block, low = 40, (1 << tables.low_bits) - 1
    start = block << tables.low_bits
    with decimal.localcontext(CONTEXT):
        exact = int(weight(tables.rate * ((start + low) ** 2 - start**2)) * (1 << COIN_BITS))
    assert tables.accepts(block, low, exact - 1)
    assert not tables.accepts(block, low, exact)
    assert tables.accepts(block, 0, (1 << COIN_BITS) - 1)


@pytest.mark.parametrize("sigma", [1.0, 63.99, 64.0, 127.9, 2.0**30, 2.0**50])
def test_blocks_are_as_wide_as_said_and_reach_16_sigma(sigma: float) -> None:
    tables = tables_of(sigma)
    width = 1 << tables.low_bits
    assert width == 1 if sigma < 64 else 32 <= sigma / width < 64
    assert (len(tables.thresholds) + 1) * width >= REACH * sigma
    assert tables.low_bits + SHORT_COIN_BITS <= 63
    assert list(tables.thresholds) == sorted(tables.thresholds)


@pytest.mark.parametrize("sigma", [0.5, 40.0, 1000.5])
def test_the_guide_names_a_block_only_where_all_uniforms_of_a_cell_fall_in_it(sigma: float) -> None:
    tables = tables_of(sigma)
    rng = np.random.default_rng(1)
    cells = np.concatenate([rng.integers(0, 1 << 14, 300), [0, (1 << 14) - 1]])
    for cell in cells.tolist():
        ends = [cell << (UNIFORM_BITS - 14), ((cell + 1) << (UNIFORM_BITS - 14)) - 1]
        blocks = {sum(one <= end for one in tables.thresholds) for end in ends}
        assert tables.guide[cell] in blocks | {MIXED}
        assert len(blocks) == 1 or tables.guide[cell] == MIXED
    assert np.mean(tables.guide == MIXED) < 0.025


def second(sigma: float, uniforms: list[int], words: list[int]) -> list[int]:
    tables = tables_of(sigma)
    bits = np.array([part for pair in zip(uniforms, words, strict=True) for part in pair], np.uint64)
    values, states = np.empty(len(words), np.int64), np.empty(len(words), np.uint8)
    discrete.compiled_loops().second(
        bits, tables.words, (tables.low_bits, tables.zero_is_fine), tables.slopes, values, states
    )
    return [int(state) for state in states]


def test_a_tie_of_highest_words_is_not_decided_by_them() -> None:
    tables = tables_of(1000.5)
    tie = int(tables.words[7])
    assert second(1000.5, [tie, tie - 1, tie + 1, (1 << 64) - 1], [0, 0, 0, 0]) == [UNCLEAR, DONE, DONE, UNCLEAR]


def test_a_coin_near_the_edge_is_not_decided_by_float64() -> None:
    """For block 40's last element at sigma 2**50: the 18-bit coin that contains the edge, and its neighbours."""
    sigma, block = 2.0**50, 40
    tables = tables_of(sigma)
    low = (1 << tables.low_bits) - 1
    uniform = (int(tables.words[block - 1]) + int(tables.words[block])) // 2
    start = block << tables.low_bits
    edge = int(weight(tables.rate * ((start + low) ** 2 - start**2)) * (1 << SHORT_COIN_BITS))
    words = [low << (63 - tables.low_bits) | coin for coin in (edge - 1, edge, edge + 1)]
    assert second(sigma, [uniform] * 3, words) == [DONE, UNCLEAR, AGAIN]


def test_zero_has_one_sign() -> None:
    """A zero with a minus sign is drawn again among wider blocks, and is zero if it is a block of its own."""
    minus = 1 << 63
    assert second(64.0, [0, 0], [0, minus]) == [DONE, AGAIN]
    assert second(1.0, [0, 0], [0, minus]) == [DONE, DONE]


def test_the_definition_reaches_the_last_block_and_no_further() -> None:
    """A uniform of ones: the largest magnitude, 16 sigma or a little more."""
    uniform, uniforms_rest, coins_rest = (1 << 64) - 1, (1 << 128) - 1, 0
    with mock.patch.object(settling, "number", side_effect=[uniform, uniforms_rest, coins_rest]):
        assert settle(tables_of(1000.0), KEY, 0) == 16 * 1000


def test_a_broken_generator_is_noticed() -> None:
    with (
        mock.patch.object(settling, "number", return_value=1 << 127),  # minus zero, for ever
        pytest.raises(NoiseExhaustedError, match=f"element 3: {MAX_ATTEMPTS} attempts"),
    ):
        settle(tables_of(1000.0), KEY, 3)
