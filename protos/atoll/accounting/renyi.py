"""Rényi divergences of Gaussian releases, and the epsilon that they come to.

They add up over releases, also when later ones are chosen after earlier results (Feldman and Zrnic 2021, "Individual
Privacy Accounting via a Rényi Filter", section 4). Poisson sampling by Opacus (Mironov et al. 2019), the conversion of
Balle et al. 2020, theorem 21.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from atoll.accounting.loading import opacus_accountants

Accountant = Literal["prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
Curve = npt.NDArray[np.float64]

ORDERS = np.array(
    [
        *(1 + step / 10 for step in range(1, 100)),
        *range(11, 65),
        *(72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024),
    ]
)
"""Orders of Rényi divergence."""


@lru_cache(maxsize=256)
def divergences(noise_multiplier: float, sample_rate: float) -> Curve:
    """Of one release with Poisson sampling, at ``ORDERS``; read only. Infinite where no bound is known.

    Raises:
        OpacusMissingError: if there is sampling, and no Opacus.
    """
    if sample_rate == 1:
        found = ORDERS / (2 * noise_multiplier**2)
    else:
        found = np.array([_sampled(sample_rate, noise_multiplier, float(order)) for order in ORDERS])
    found.flags.writeable = False
    return found


def converted(curve: Curve, delta: float) -> float:
    """Epsilon at delta from divergences at ``ORDERS`` (Balle et al. 2020, theorem 21)."""
    found = curve - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1) + np.log1p(-1 / ORDERS)
    return max(0.0, float(np.min(found)))


def _sampled(rate: float, sigma: float, order: float) -> float:
    """By Opacus; infinite where its sum of signed terms loses its sign, so that the order is not used."""
    analysis = opacus_accountants().analysis.rdp
    try:
        found = float(analysis.compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order))
    except (ValueError, OverflowError):
        return math.inf
    return max(found, 0.0) if found > -1e-12 else math.inf
