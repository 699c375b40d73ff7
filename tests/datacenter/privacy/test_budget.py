"""Cost of steps, by reference values; samples as the accountant assumes; spending counted over restarts."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from atoll.accounting import Accountant
from atoll.datacenter.data.batches import Batches, Shuffled
from atoll.datacenter.data.digits import Digits
from atoll.datacenter.data.packing import IGNORED
from atoll.datacenter.errors import DataError, LayoutError
from atoll.datacenter.job.privacy import PrivacySection
from atoll.datacenter.privacy import Budget, Secret
from atoll.datacenter.privacy.sampling import PoissonBatches, PoissonSource


@pytest.mark.parametrize(
    ("accountant", "noise", "rate", "steps", "delta", "wanted"),
    [
        ("rdp", 1.0, 0.01, 1000, 1e-5, 2.1014),
        ("prv", 1.0, 0.01, 1000, 1e-5, 1.8282),
        ("rdp", 1.1, 256 / 60_000, 14_062, 1e-5, 2.5966),
    ],
)
def test_epsilon_is_the_published_one(
    accountant: Accountant, noise: float, rate: float, steps: int, delta: float, wanted: float
) -> None:
    assert Budget(noise, rate, delta, accountant).epsilon(steps) == pytest.approx(wanted, abs=2e-3)


def test_nothing_spent_before_the_first_step_and_no_bound_without_noise() -> None:
    assert Budget(1.0, 0.1, 1e-5, "rdp").epsilon(0) == 0
    assert Budget(0.0, 0.1, 1e-5, "rdp").epsilon(1) == inf


def section(**keys: Any) -> PrivacySection:
    return PrivacySection.model_validate(keys)


def test_noise_is_chosen_to_keep_a_given_epsilon() -> None:
    budget = Budget.of(section(epsilon=2.0, delta=1e-5, accountant="rdp"), 0.01, 1000)
    assert 1.99 <= budget.epsilon(1000) <= 2.0
    assert budget.epsilon(500) < budget.epsilon(1000)


def test_noise_is_found_at_a_tiny_delta() -> None:
    given = {"epsilon": 5.0, "delta": 1e-14}
    numerical, renyi = (Budget.of(section(**given, accountant=by), 0.01, 1000) for by in ("prv", "rdp"))
    assert 0.9 * renyi.noise_multiplier < numerical.noise_multiplier < renyi.noise_multiplier
    assert 4.99 <= numerical.epsilon(1000) <= 5.0


def test_an_epsilon_that_no_noise_keeps_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"privacy\.epsilon = 1e-09 with delta = 1e-05 cannot be kept over 1000"):
        Budget.of(section(epsilon=1e-9, delta=1e-5, accountant="rdp"), 1.0, 1000)


@pytest.mark.parametrize("keys", [{}, {"epsilon": 1.0, "noise_multiplier": 1.0}])
def test_noise_is_given_exactly_once(keys: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either noise_multiplier or epsilon"):
        section(**keys)


def source(secret: tuple[int, ...] = (1, 2), micro: int = 3, tag: str = "1/0.1") -> PoissonSource:
    return PoissonSource(Digits(), 150, micro, Secret(secret), tag)


def test_each_sequence_is_in_a_step_with_the_same_chance() -> None:
    drawn = source()
    total, steps = len(drawn.sequences), 400
    counts = np.zeros(total)
    sizes = []
    for step in range(steps):
        found = drawn.sampled(step)
        assert np.unique(found).size == found.size
        counts[found] += 1
        sizes.append(found.size)
    rate = 150 / total
    spread = (total * rate * (1 - rate)) ** 0.5
    assert abs(np.mean(sizes) - 150) < 4 * spread / steps**0.5
    assert np.std(sizes) == pytest.approx(spread, rel=0.15)
    assert np.std(counts) == pytest.approx((steps * rate * (1 - rate)) ** 0.5, rel=0.1)


def test_another_secret_is_another_sample_and_it_is_written_nowhere() -> None:
    assert not np.array_equal(source((1, 2)).sampled(0), source((1, 3)).sampled(0))
    assert source((1, 2)).digest == source((1, 3)).digest
    assert "words" not in repr(Secret((1, 2)))


def test_ranks_share_a_sample_and_have_as_many_rows() -> None:
    batches = PoissonBatches(source())
    for number in (0, 1):
        shares = [batches.step(number).counted_share(rank, (50, 50, 50)) for rank in range(3)]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) % 3 == 0
        assert sum(int((share.labels != IGNORED).sum()) for share in shares) == batches.source.sampled(number).size
        pixels = torch.cat([share.tokens[share.labels != IGNORED] for share in shares])
        wanted = batches.source.sequences.rows(batches.source.sampled(number)).inputs
        assert torch.equal(pixels, torch.from_numpy(wanted))


def test_a_checkpoint_of_another_mechanism_is_refused() -> None:
    state = PoissonBatches(source()).state()
    PoissonBatches(source((5, 6))).load(state)
    with pytest.raises(DataError, match=r"poisson/2/0\.1"):
        PoissonBatches(source(tag="2/0.1")).load(state)
    with pytest.raises(DataError, match="poisson"):
        Batches(Shuffled(Digits(), 150, 0)).load(state)


def test_fewer_sequences_than_a_step_expects_are_refused() -> None:
    with pytest.raises(DataError, match=r"1572 sequences are fewer than batch\.global_batch = 2000"):
        PoissonSource(Digits(), 2000, 1, Secret((1, 2)), "")
