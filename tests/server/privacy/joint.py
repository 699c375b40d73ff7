"""The account of a release with noised counts, made by dp-accounting from the release's parts.

A release is the noised sum of the updates and, where a job asks for them, a noised count of norms and a noised number
of reports. One participant is in all of them or in none. Nothing here merges the noises into one multiplier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting import pld, rdp
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots
from scipy.special import ndtr

from atoll.server.privacy.contract import Contract

Doubles = npt.NDArray[np.float64]

_CELLS = (4, 8)
"""Cells of outcomes per standard deviation. They hide a part of the loss that falls with the square of their number."""
_INTERVAL = 1e-4
"""Grid of dp-accounting's losses; its estimates are pessimistic."""
_REACH = 10.0
"""Standard deviations beyond which all of a part's noise is one cell: it has a probability of 1e-23."""


@dataclass(frozen=True, slots=True)
class Release:
    """The releases of one round.

    Attributes:
        noises: for each part, standard deviation of the noise divided by one participant's effect on the part.
        rate: probability that one participant is in the round; 1 without a random draw.
        count: number of such rounds.
    """

    noises: tuple[float, ...]
    rate: float
    count: int


def release_of(contract: Contract) -> Release:
    """The rounds of a run with the server's noise, without its charges.

    One participant is in the count of norms with 1/2 or -1/2, and in the number of reports with 1.
    """
    counted = [] if contract.count_noise is None else [contract.count_noise / 0.5]
    reports = [] if contract.report_noise is None else [contract.report_noise / 1.0]
    count = contract.rounds if contract.max_participations is None else contract.max_participations
    return Release((contract.noise_multiplier, *counted, *reports), contract.sample_rate, count)


def by_divergences(release: Release, delta: float) -> float:
    """Epsilon by Rényi divergences of integer orders, an upper bound: dp-accounting merges the noises itself."""
    parts = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise) for noise in release.noises])
    accountant = rdp.RdpAccountant(orders=list(range(2, 257)))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(release.rate, parts), release.count)
    return float(accountant.get_epsilon(delta))


def by_losses(release: Release, delta: float) -> float:
    """Epsilon by privacy loss distributions.

    Without a random draw dp-accounting composes the parts one by one. With one, the joint outcome of all parts is cut
    into cells, whose account is extrapolated to cells of width 0.
    """
    if release.rate == 1:
        accountant = pld.PLDAccountant(value_discretization_interval=_INTERVAL)
        for noise in release.noises:
            accountant.compose(dp_accounting.GaussianDpEvent(noise), release.count)
        return float(accountant.get_epsilon(delta))
    coarse, fine = (_of_cells(release, delta, cells) for cells in _CELLS)
    return (4 * fine - coarse) / 3


def _of_cells(release: Release, delta: float, cells: int) -> float:
    absent, drawn = (_probabilities(release.noises, cells, moved=moved) for moved in (0, 1))
    present = (1 - release.rate) * absent + release.rate * drawn
    both = _losses(present, absent), _losses(absent, present)
    once = pld.privacy_loss_distribution.PrivacyLossDistribution(*both)
    return float(once.self_compose(release.count).get_epsilon_for_delta(delta))


def _probabilities(noises: tuple[float, ...], cells: int, *, moved: int) -> Doubles:
    """Probabilities of all cells of the joint outcome, with the participant's part (``moved`` 1) or without (0)."""
    joint: Doubles = np.ones(1)
    for noise in noises:
        edges = np.arange(-_REACH, _REACH + 1 / noise, 1 / cells) - moved / noise
        low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
        one = np.where(low < 0, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high))
        joint = np.multiply.outer(joint, one).ravel()
    return joint


def _losses(upper: Doubles, lower: Doubles) -> PLDPmf:
    """The losses log(upper / lower) of outcomes drawn from ``upper``, on a grid, never too small."""
    losses = np.log(upper) - np.log(lower)
    order = np.argsort(losses)
    losses, upper, lower = losses[order], upper[order], lower[order]
    upper_from, lower_from = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (upper, lower))
    grid = np.arange(math.floor(losses[0] / _INTERVAL) - 1, math.ceil(losses[-1] / _INTERVAL) + 2)
    at = np.searchsorted(losses, grid * _INTERVAL)
    deltas = np.maximum(0.0, upper_from[at] - np.exp(grid * _INTERVAL) * lower_from[at])
    return create_pmf_pessimistic_connect_dots(_INTERVAL, grid, np.minimum(deltas, 1.0))
