"""The ledger of a data set with one sample as the unit of privacy: the cost of DP-SGD steps, and the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from atoll.accounting import Accountant, Steps, filtered
from atoll.client._privacy.ledger import Ledger, Limit, Release
from atoll.client._state.records import FOLDER

DP_SGD = "dp-sgd"
SAMPLE = "sample"


def dp_sgd_release(noise_multiplier: float, sample_rate: float, count: int) -> Release:
    """The releases of ``count`` steps of DP-SGD."""
    return Release(DP_SGD, noise_multiplier, sample_rate=sample_rate, count=count)


def cost(releases: Sequence[Release], delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon of steps, by a privacy filter (``atoll.accounting.filtering``).

    A filter, because the server chooses the number of further steps after it has seen earlier updates.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise_multiplier, release.sample_rate] += release.count
    steps = [Steps(noise, rate, count) for (noise, rate), count in counts.items()]
    return filtered(steps, delta, accountant)[0] if steps else 0.0


def sample_ledger(path: Path, limit: Limit, accountant: Accountant) -> Ledger:
    """The ledger of samples in a file."""
    return Ledger(path, SAMPLE, limit, lambda releases, delta: cost(releases, delta, accountant))


def ledger_path(state: Path, data: str) -> Path:
    """Path of a data set's ledger in a state directory."""
    return state / FOLDER / f"samples-{data}.json"
