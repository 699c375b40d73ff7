"""Canaries, each in or out by a coin (Steinke, Nasr, Jagielski 2023, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.privacy_audit.canaries import OVERSIZE, Canaries, Directions


@pytest.mark.parametrize("directions", ["dirac", "signs"])
def test_directions_are_orthogonal_and_far_longer_than_the_clip(directions: Directions) -> None:
    canaries = Canaries(16, 0.25, directions)
    updates = np.stack([canaries.update(number) for number in range(16)]).astype(np.float64)
    assert np.allclose(updates @ updates.T, (OVERSIZE * 0.25) ** 2 * np.eye(16))


@pytest.mark.parametrize("directions", ["dirac", "signs"])
def test_what_is_found_in_a_sum_is_each_canarys_part(directions: Directions) -> None:
    canaries = Canaries(64, 0.25, directions)
    parts = np.random.default_rng(3).integers(-1, 2, 64)
    sums = sum(sign * canaries.update(number) / OVERSIZE for number, sign in enumerate(parts) if sign)
    assert np.allclose(canaries.found_in(np.asarray(sums, np.float64)), parts, atol=1e-6)


def test_signs_touch_every_element_and_dirac_one() -> None:
    assert np.count_nonzero(Canaries(8, 1.0, "signs").update(5)) == 8
    assert np.count_nonzero(Canaries(8, 1.0, "dirac").update(5)) == 1


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_their_number_is_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Canaries(count, 1.0)
