from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from atoll.server.aggregation.optimisers import FedAvgM
from atoll.server.privacy.contract import Contract
from atoll.server.privacy_audit.rehearsal import Rehearsal, Safeguards
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.privacy_audit.contracts import BANDED, BLT, GAUSSIAN, TREE, contract

SIZE = 20_000
LAYOUT = Layout((TensorSpec("w", (SIZE,), Dtype.FLOAT32),))
ZERO = np.zeros(SIZE, np.float32)


def one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    update = np.zeros(SIZE, np.float32)
    update[7] = value
    return update


def test_the_denominator_is_fixed_and_updates_are_clipped() -> None:
    run = Rehearsal(contract(), LAYOUT, ZERO, most=10, safeguards=Safeguards(noise=0.0))
    run.release([one(3.0), one(0.25)])
    assert run.model[7] == pytest.approx((0.5 + 0.25) / 100)
    assert np.count_nonzero(run.model) == 1


def test_what_is_switched_off_is_off() -> None:
    run = Rehearsal(contract(), LAYOUT, ZERO, most=10, safeguards=Safeguards(noise=0.0, clipping=False))
    run.release([one(3.0)])
    assert run.model[7] == pytest.approx(3.0 / 100)


def test_a_round_without_members_is_noise() -> None:
    run = Rehearsal(contract(), LAYOUT, ZERO, most=10)
    run.release([])
    assert np.std(run.model) == pytest.approx(0.5 / 100, rel=0.05)


@pytest.mark.parametrize("terms", [GAUSSIAN, TREE, BANDED, BLT], ids=lambda terms: terms.mechanism)
def test_the_model_after_n_rounds_has_the_noise_of_the_mechanism(terms: Contract) -> None:
    run = Rehearsal(terms, LAYOUT, ZERO, most=10)
    for _ in range(6):
        run.release([])
    one_draw = terms.noise_multiplier * terms.clip * terms.weight_bound / terms.divisor_weight
    assert BLT.strategy is not None
    draws = {
        "gaussian": 6.0,
        "tree": 2.0,
        "banded": last_prefix((1, 1 / 2, 3 / 8, 5 / 16)),  # Fichtenberger et al. 2023, section 3
        "blt": last_prefix(BLT.strategy.coefficients(6).tolist()),
    }
    assert np.var(run.model) == pytest.approx(draws[terms.mechanism] * one_draw**2, rel=0.05)


def last_prefix(first: Sequence[float]) -> float:
    """Variance of the sum of six rounds' noise, C^-1 z, by the first column of C as far as it is not 0."""
    matrix = np.zeros((6, 6))
    for offset, coefficient in enumerate(first):
        matrix += coefficient * np.eye(6, k=-offset)
    return float(np.square(np.linalg.inv(matrix).sum(axis=0)).sum())


def test_an_optimisers_state_goes_from_round_to_round() -> None:
    momentum = FedAvgM(lr=1.0, momentum=0.5)
    run = Rehearsal(contract(), LAYOUT, ZERO, most=4, optimiser=momentum, safeguards=Safeguards(noise=0.0))
    run.release([one(0.5)])
    run.release([])
    assert run.model[7] == pytest.approx((0.5 + 0.25) / 100)
