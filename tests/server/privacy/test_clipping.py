"""Clipping (Andrew et al. 2021, Sections 2 and 3.1)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atoll.server.privacy.clipping import AdaptiveClip
from atoll.server.privacy.noise import DiscreteGaussian

KEY = bytes(range(32))


def adaptive(quantile: float = 0.5, count_noise: float = 5.0, expected: int = 100) -> AdaptiveClip:
    return AdaptiveClip(quantile, 0.2, expected, count_noise)


def test_an_update_of_the_clip_matches_the_paper() -> None:
    """Section 2: C exp(-eta (b - gamma)), here b = 80 / 100."""
    assert adaptive().next_clip(2.0, 2 * 80 - 100) == pytest.approx(2.0 * math.exp(-0.2 * (0.8 - 0.5)))
    assert adaptive().next_clip(2.0, 2 * 20 - 100) == pytest.approx(2.0 * math.exp(0.2 * 0.3))


def test_members_without_a_report_do_not_move_the_clip() -> None:
    """The share is of the expected cohort: without reports it is 1/2, for any norm."""
    clip = adaptive()
    assert clip.share(0) == 0.5
    assert clip.share(2 * 30 - 60) == 0.5
    assert clip.share(2 * 60 - 60) == pytest.approx(0.8)


def test_the_norm_finds_the_quantile() -> None:
    """Section 2.1: from far above and far below, within a few per cent of the 80 % quantile."""
    rng = np.random.default_rng(1)
    norms = rng.lognormal(0.0, 0.5, 100)
    wanted = float(np.quantile(norms, 0.8))
    for start in (0.01, 100.0):
        settings, clip, late = adaptive(0.8), start, []
        for number in range(300):
            key = number.to_bytes(32, "big")
            count = settings.noised_count(int(np.count_nonzero(norms <= clip)), norms.size, key)
            clip = settings.next_clip(clip, count)
            late += [clip] if number >= 200 else []
        assert float(np.mean(late)) == pytest.approx(wanted, rel=0.1)


def test_the_count_is_noised_as_it_is_charged() -> None:
    """Each counts plus or minus 1 against twice sigma_b, which is plus or minus 1/2 against sigma_b (Section 3.1)."""
    settings = adaptive(count_noise=7.0)
    counts = [settings.noised_count(60, 100, number.to_bytes(32, "big")) for number in range(4000)]
    assert np.mean(counts) == pytest.approx(20, abs=1)
    assert np.std(counts) == pytest.approx(14.0, rel=0.05)
    noise = np.empty(1, np.int64)
    DiscreteGaussian(14.0 * 2**20).draw(noise, KEY)
    assert settings.noised_count(60, 100, KEY) == 20 + int(noise[0]) / 2**20


@pytest.mark.parametrize(
    "bad", [(0.0, 0.2, 10, 1.0), (1.0, 0.2, 10, 1.0), (0.5, 0.0, 10, 1.0), (0.5, 0.2, 0, 1.0), (0.5, 0.2, 10, 0.0)]
)
def test_settings_out_of_bounds_are_refused(bad: tuple[float, float, int, float]) -> None:
    with pytest.raises(ValueError, match=r"quantile|learning_rate|expected|count_noise"):
        AdaptiveClip(*bad)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4 updates"):
        adaptive().noised_count(5, 4, KEY)


def test_the_norm_stays_a_number() -> None:
    settings = AdaptiveClip(0.5, 1e6, 1, 1.0)
    assert settings.next_clip(1.0, 10**6) == pytest.approx(math.exp(-20))
    with pytest.raises(OverflowError, match="lower the learning rate"):
        settings.next_clip(1e308, -(10**6))
