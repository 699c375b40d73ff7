"""The ledger of a data set of which each sample is protected: what steps of DP-SGD cost, and where it lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from atoll.accounting import Accountant, Steps, filtered
from atoll.client.privacy.ledger import Ledger, Limit, Release
from atoll.client.privacy.records import FOLDER

DP_SGD = "dp-sgd"
SAMPLE = "sample"
NAME_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
"""Of a data set."""


def steps_of(noise_multiplier: float, sample_rate: float, count: int) -> Release:
    """What so many steps release."""
    return Release(DP_SGD, noise_multiplier, sample_rate=sample_rate, count=count)


def cost(
    releases: Sequence[Release], delta: float, accountant: Accountant = "rdp", limit: float | None = None
) -> float:
    """The epsilon that steps come to, by the filter of a limit (``atoll.accounting.filtering``).

    The server chooses how many steps come next, after it has seen earlier ones.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise_multiplier, release.sample_rate] += release.count
    steps = [Steps(noise, rate, count) for (noise, rate), count in counts.items()]
    return filtered(steps[0], steps, limit, delta, accountant)[0] if steps else 0.0


def sample_ledger(path: Path, limit: Limit, accountant: Accountant) -> Ledger:
    """The ledger in a file."""
    return Ledger(path, SAMPLE, limit, lambda releases, delta: cost(releases, delta, accountant, limit.epsilon))


def ledger_path(state: Path, data: str) -> Path:
    """Where a state directory has the ledger of a data set."""
    return state / FOLDER / f"samples-{data}.json"
