from __future__ import annotations

import numpy as np
import pytest

from atoll.server.aggregation.optimisers import FedAvgM
from atoll.server.privacy.audit.rehearsal import Rehearsal, Safeguards
from atoll.server.privacy.contract import Contract
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.privacy.audit.contracts import BANDED, GAUSSIAN, TREE, contract

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


def test_a_round_of_nobody_is_noise() -> None:
    run = Rehearsal(contract(), LAYOUT, ZERO, most=10)
    run.release([])
    assert np.std(run.model) == pytest.approx(0.5 / 100, rel=0.05)


@pytest.mark.parametrize("terms", [GAUSSIAN, TREE, BANDED], ids=lambda terms: terms.mechanism)
def test_the_model_after_n_rounds_has_the_noise_of_the_mechanism(terms: Contract) -> None:
    run = Rehearsal(terms, LAYOUT, ZERO, most=10)
    for _ in range(6):
        run.release([])
    one_draw = terms.noise_multiplier * terms.clip * terms.weight_bound / terms.divisor_weight
    draws = {"gaussian": 6.0, "tree": 2.0, "banded": (np.linalg.inv(banded()) ** 2).sum()}
    if terms.mechanism == "banded":
        draws["banded"] = float(np.square(np.linalg.inv(banded()).sum(axis=0)).sum())
    assert np.var(run.model) == pytest.approx(draws[terms.mechanism] * one_draw**2, rel=0.05)


def banded() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """C of ``BANDED``, over 6 rounds; coefficients of Fichtenberger et al. 2023, section 3."""
    matrix = np.zeros((6, 6))
    for offset, coefficient in enumerate((1, 1 / 2, 3 / 8, 5 / 16)):
        matrix += coefficient * np.eye(6, k=-offset)
    return matrix


def test_an_optimisers_state_goes_from_round_to_round() -> None:
    momentum = FedAvgM(lr=1.0, momentum=0.5)
    run = Rehearsal(contract(), LAYOUT, ZERO, most=4, optimiser=momentum, safeguards=Safeguards(noise=0.0))
    run.release([one(0.5)])
    run.release([])
    assert run.model[7] == pytest.approx((0.5 + 0.25) / 100)
