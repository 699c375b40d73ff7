"""The soak's test for growth reports leaks and ignores jitter."""

import numpy as np
import pytest

from benchmarks.soak.flatness import LEAST_SAMPLES, Tolerance, judge

MIB = 1 << 20
TIMES = [2.0 * place for place in range(900)]
NOISE = np.random.default_rng(7).normal(0, 0.3, len(TIMES))
MEMORY = Tolerance(share=0.05, amount=8.0)


def test_noise_and_spikes_are_flat() -> None:
    values = 100.0 + NOISE
    values[::50] += 400.0
    assert judge(TIMES, list(values), MEMORY).flat


def test_what_is_only_a_warm_up_is_flat() -> None:
    values = 100.0 + NOISE - 60.0 * np.exp(-np.asarray(TIMES) / 60.0)
    assert judge(TIMES, list(values), MEMORY).flat


def test_a_slow_leak_is_found() -> None:
    """1 MiB every 100 s: 13.5 in the judged 1350 s."""
    verdict = judge(TIMES, [100.0 + noise + at / 100.0 for at, noise in zip(TIMES, NOISE, strict=True)], MEMORY)
    assert not verdict.flat
    assert verdict.growth == pytest.approx(13.5, rel=0.05)
    assert verdict.allowed == 8.0


def test_a_leak_in_steps_is_found() -> None:
    assert not judge(TIMES, [float(60 + at // 100) for at in TIMES], Tolerance(0.0, 4.0)).flat


ALTERNATING = [35.0 if at % 60 < 25 else 70.0 for at in TIMES]
"""A disk while runs of a small and of a large model are in work in turn."""


def test_a_figure_that_rises_and_falls_is_flat() -> None:
    assert judge(TIMES, ALTERNATING, Tolerance(0.0, 2.0)).flat


def test_a_leak_in_a_figure_that_rises_and_falls_is_found() -> None:
    """5 with each turn: 112 in the judged 1350 s."""
    verdict = judge(TIMES, [held + 5 * (at // 60) for held, at in zip(ALTERNATING, TIMES, strict=True)], MEMORY)
    assert verdict.growth == pytest.approx(112.0, rel=0.05)
    assert not verdict.flat


def test_what_shrinks_is_no_leak() -> None:
    assert judge(TIMES, [100.0 - at / 30 for at in TIMES], Tolerance(0.0, 0.0)).flat


def test_the_larger_tolerance_holds() -> None:
    assert judge(TIMES, [1000.0 + at / 100.0 for at in TIMES], MEMORY).allowed == pytest.approx(50.0, rel=0.02)


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="soak for longer"):
        judge(TIMES[:LEAST_SAMPLES], [1.0] * LEAST_SAMPLES, MEMORY)


BUSY = [34.0 if at % 90 < 40 + at / 60 else 0.0 for at in TIMES]
"""Memory of large pieces of work, which come to take more and more of the time."""


def test_more_work_is_no_leak_and_hides_none() -> None:
    floors = Tolerance(0.02, 2.0, floors=True)
    assert judge(TIMES, [136.0 + work for work in BUSY], floors).flat
    leaking = [136.0 + work + at / 400.0 for at, work in zip(TIMES, BUSY, strict=True)]
    assert judge(TIMES, leaking, floors).growth == pytest.approx(3.4, rel=0.1)
    assert not judge(TIMES, leaking, floors).flat
