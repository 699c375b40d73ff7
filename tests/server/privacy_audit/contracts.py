"""Contracts to audit."""

from __future__ import annotations

from typing import Any

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Adjacency, Sampling
from atoll.server.privacy.mechanisms import Strategy


def contract(**changed: Any) -> Contract:
    """One Gaussian release of epsilon 4.4 at delta 1e-5, with the given changes."""
    settings: dict[str, Any] = {
        "population": "people",
        "mechanism": "gaussian",
        "adjacency": Adjacency.ADD_REMOVE,
        "accountant": "prv",
        "sampling": Sampling.NONE,
        "sample_rate": 1.0,
        "epsilon": None,
        "delta": 1e-5,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "adaptive": None,
        "weight_bound": 1,
        "divisor_weight": 100,
        "rounds": 1,
        "max_participations": 1,
    }
    return Contract(**(settings | changed))


POISSON = contract(sampling=Sampling.POISSON, sample_rate=0.2, noise_multiplier=1.3, rounds=20, max_participations=None)
GAUSSIAN = contract(noise_multiplier=2.0, rounds=6, max_participations=3, weight_bound=7)
TREE = contract(mechanism="tree", noise_multiplier=5.0, rounds=12, max_participations=3, min_separation=4)
BLT = contract(
    mechanism="blt",
    noise_multiplier=2.5,
    rounds=12,
    max_participations=3,
    min_separation=4,
    strategy=Strategy((0.5, 0.9375), (0.25, 0.125), 6),
)
BANDED = contract(mechanism="banded", noise_multiplier=2.5, rounds=12, max_participations=3, min_separation=4, bands=4)
