"""The signal-to-noise ratio, against the mechanisms' matrices written out."""

from dataclasses import replace

import numpy as np
import pytest

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.mechanisms.sensitivity import banded_coefficients
from atoll.server.privacy.signal_to_noise import noise_of_round, noise_of_run, signal_to_noise, signal_to_noise_of_run
from tests.server.privacy.jobs import NOISE, job

ROUNDS = 21


def contract(mechanism: str, rounds: int = ROUNDS) -> Contract:
    keys = f'{NOISE}\nclip = 0.5\nmechanism = "{mechanism}"\nmax_participations = 2\nmin_separation = 4'
    found = contract_of(job("availability", keys, rounds=rounds))
    assert found is not None
    return found


def prefix_noise(mechanism: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Row t: which independent unit noises are in the sum of the first t + 1 rounds."""
    if mechanism in {"banded", "blt"}:
        strategy = contract("blt").strategy
        assert strategy is not None
        first = banded_coefficients(4) if mechanism == "banded" else strategy.coefficients(ROUNDS).tolist()
        c = sum(np.diag(np.full(ROUNDS - k, value), -k) for k, value in enumerate(first))
        return np.asarray(np.tril(np.ones((ROUNDS, ROUNDS))) @ np.linalg.inv(c))
    if mechanism == "gaussian":
        return np.tril(np.ones((ROUNDS, ROUNDS)))
    rows = np.zeros((ROUNDS, ROUNDS))
    for last in range(1, ROUNDS + 1):
        node = last
        while node:
            rows[last - 1, node - 1] = 1
            node &= node - 1
    return rows


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded", "blt"])
def test_noise_is_that_of_the_mechanisms_matrix(mechanism: str) -> None:
    prefixes = prefix_noise(mechanism)
    steps = np.diff(prefixes, axis=0, prepend=0)
    found = replace(contract(mechanism), noise_multiplier=3.0)
    assert noise_of_run(found) == pytest.approx(3 * np.linalg.norm(prefixes[-1]))
    assert noise_of_round(found) == pytest.approx(3 * np.sqrt(np.mean(np.sum(np.square(steps), axis=1))))


def test_correlated_noise_leaves_less_in_the_last_model() -> None:
    """With the same noise multiplier, the noises of the rounds partly cancel."""
    noise = {name: noise_of_run(contract(name, 1000)) for name in ("gaussian", "tree", "banded", "blt")}
    assert noise["tree"] < noise["gaussian"] / 3
    assert noise["banded"] < noise["gaussian"] / 1.5
    assert noise["blt"] < noise["gaussian"] / 3


def test_the_ratio_does_not_depend_on_clip_or_weights() -> None:
    found = contract("gaussian")
    assert signal_to_noise(found, 100, 10_000) == pytest.approx(1.0)
    assert signal_to_noise(replace(found, clip=9.0, weight_bound=50), 100, 10_000) == pytest.approx(1.0)
    assert signal_to_noise_of_run(found, 100, 10_000) == pytest.approx(np.sqrt(ROUNDS))
