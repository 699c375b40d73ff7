"""What releases cost together: epsilon at a delta, and the least noise that meets a target.

Two accountants, both upper bounds:

- ``rdp``: Rényi divergences add up over releases, also when later ones are chosen after earlier results (Feldman and
  Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", section 4). Poisson sampling by Opacus (Mironov et al.
  2019), fixed-size sampling by ``without_replacement``, the conversion of Balle et al. 2020, theorem 21.
- ``prv``: Opacus' numerical composition of privacy loss distributions (Gopi et al. 2021), which is tighter. It works in
  float64: where rounding could reach a hundredth of delta (it was seen below the truth at delta = 1e-12), or the grid
  would grow beyond ``MAX_POINTS``, ``rdp`` answers.

Opacus' third one (GDP, a central limit theorem) is not used: it is no upper bound.

Noise is accounted as continuous. The discrete Gaussian has the same Rényi divergences or smaller ones (Canonne, Kamath,
Steinke 2020, theorem 4), and at the standard deviations used, 2**16 grid units and more, its other divergences differ
by less than float64 can tell.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError, SetupError
from atoll.server.privacy.values import Event, Sampling
from atoll.server.privacy.without_replacement import MAX_ORDER, subsampled_divergence

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
"""Orders of Rényi divergence; of fixed-size sampling only whole ones up to ``MAX_ORDER`` are known."""

PRV_ERROR = 0.01
"""What the numerical composition may be off by, in epsilon; added to its result."""
MAX_POINTS = 1 << 20
"""Of the grid of the numerical composition: about two seconds."""
_FLOAT_ERROR = 2.0**-53
_MAX_LOSS = 600.0
"""Beyond that exponentials of privacy losses overflow."""
_MAX_NOISE = 1e6
_TOLERANCE = 1 + 1e-4


def epsilon(events: Iterable[Event], delta: float, accountant: Accountant) -> float:
    """Upper bound on epsilon, at ``delta``, of all releases together; infinite if one has no noise.

    Takes from a millisecond to a few seconds; the latest answers are kept.

    Raises:
        ValueError: for an unknown accountant, a delta that is none, and events without a common account: fixed-size
            sampling beside other events (adjacencies differ), or with ``prv``.
        SetupError: if Opacus is not installed.
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r}: must be one of {', '.join(ACCOUNTANTS)}")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be above 0 and below 1")
    paid = merged(events)
    fixed = [event for event in paid if event.sampling is Sampling.FIXED_SIZE]
    if fixed and len(fixed) < len(paid):
        raise ValueError("fixed-size sampling speaks of replacing one participant, the other events of removing one")
    if fixed and accountant == "prv":
        raise ValueError('accountant "prv" is not valid for sampling without replacement; use "rdp"')
    if not paid:
        return 0.0
    if any(event.noise_multiplier == 0 for event in paid):
        return math.inf
    return _epsilon(paid, delta, accountant)


@lru_cache(maxsize=4096)
def _epsilon(paid: tuple[Event, ...], delta: float, accountant: Accountant) -> float:
    by_rdp = converted(divergences(paid), delta)
    return by_rdp if accountant == "rdp" else min(by_rdp, _by_prv(paid, delta))


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same cost in fewest events: equal ones counted, and all without sampling as one.

    n Gaussian releases with noise multipliers z_i cost exactly what one does with (sum of z_i**-2)**(-1/2).
    """
    counts: Counter[Event] = Counter()
    precision = 0.0
    for event in events:
        if event.is_free:
            continue
        if event.sampling is Sampling.NONE or (event.sample_rate == 1 and event.sampling is Sampling.POISSON):
            precision += math.inf if event.noise_multiplier == 0 else event.count / event.noise_multiplier**2
        else:
            counts[Event(event.noise_multiplier, event.sample_rate, 1, event.sampling)] += event.count
    found = [Event(one.noise_multiplier, one.sample_rate, count, one.sampling) for one, count in counts.items()]
    if precision:
        found.append(Event(precision**-0.5))
    return tuple(sorted(found, key=lambda one: (one.sampling, one.sample_rate, one.noise_multiplier)))


def divergences(events: Sequence[Event]) -> Curve:
    """Rényi divergences of all of them together at ``ORDERS``; infinite where no bound is known."""
    total = np.zeros(ORDERS.size)
    for event in events:
        if not event.is_free:
            total += event.count * _divergences(_single(event))
    return total


def converted(curve: Curve, delta: float) -> float:
    """Epsilon at delta from divergences at ``ORDERS`` (Balle et al. 2020, theorem 21)."""
    found = curve - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1) + np.log1p(-1 / ORDERS)
    return max(0.0, float(np.min(found)))


def _single(event: Event) -> Event:
    return Event(event.noise_multiplier, event.sample_rate, 1, event.sampling)


@lru_cache(maxsize=256)
def _divergences(event: Event) -> Curve:
    found = np.array([_divergence(event, float(order)) for order in ORDERS])
    found.flags.writeable = False
    return found


def _divergence(event: Event, order: float) -> float:
    sigma = event.noise_multiplier
    if event.sampling is Sampling.FIXED_SIZE:
        known = order.is_integer() and order <= MAX_ORDER
        return subsampled_divergence(event.sample_rate, sigma / 2, int(order)) if known else math.inf
    if event.sampling is Sampling.NONE or event.sample_rate == 1:
        return order / (2 * sigma**2)
    return _poisson_divergence(event.sample_rate, sigma, order)


def _poisson_divergence(rate: float, sigma: float, order: float) -> float:
    """By Opacus; infinite where its sum of signed terms loses its sign, so that the order is not used."""
    analysis = _opacus().analysis.rdp
    try:
        found = float(analysis.compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order))
    except (ValueError, OverflowError):
        return math.inf
    return max(found, 0.0) if found > -1e-12 else math.inf


def _by_prv(paid: tuple[Event, ...], delta: float) -> float:
    """By numerical composition, as an upper bound; infinite where it would not be one, or would take too long."""
    releases = sum(event.count for event in paid)
    outside = delta / 1000
    error, points = _grid(paid, releases, outside)
    rounding = releases * math.log2(points) * _FLOAT_ERROR
    if points > MAX_POINTS or rounding > delta / 100:
        return math.inf
    accountant = _opacus().PRVAccountant()
    accountant.history = [(event.noise_multiplier, event.sample_rate, event.count) for event in paid]
    try:
        with np.errstate(all="ignore"):
            found = float(accountant.get_epsilon(delta - rounding, eps_error=error, delta_error=outside))
    except (RuntimeError, ValueError):  # its own checks of precision
        return math.inf
    return math.inf if math.isnan(found) else found


def _grid(paid: tuple[Event, ...], releases: int, outside: float) -> tuple[float, float]:
    """Error in epsilon and points of the grid, of which at most ``outside`` of the distribution may lie out of reach.

    As Opacus chooses it (Gopi et al. 2021, remark 5.6). The error is ``PRV_ERROR``, and where that needs too many
    points up to a fiftieth of epsilon.
    """
    single = max(converted(_divergences(_single(event)), outside / (8 * releases)) for event in paid)
    together = converted(divergences(paid), outside / 4)
    reach = max(together, single, PRV_ERROR) + 3
    if reach > _MAX_LOSS:
        return PRV_ERROR, math.inf
    points = 2 * reach / PRV_ERROR * math.sqrt(releases * math.log(12 / outside) / 2)
    coarser = max(1.0, points / MAX_POINTS)
    if coarser * PRV_ERROR > min(0.5, together / 50):
        return PRV_ERROR, points
    return coarser * PRV_ERROR, points / coarser


def calibrate(event: Event, target: float, delta: float, accountant: Accountant) -> float:
    """The least noise multiplier with which ``event``, whose own is not looked at, costs at most ``target``.

    Takes up to some ten seconds with ``prv`` and many releases; the latest answers are kept. Off by at most a
    ten-thousandth, upwards.

    Raises:
        InvalidRequestError: if no noise up to a million does.
        SetupError: if Opacus is not installed.
    """
    return _calibrate(event.sample_rate, event.count, event.sampling, target, delta, accountant)


@lru_cache(maxsize=256)
def _calibrate(  # its arguments are the key of the cache
    rate: float, count: int, sampling: Sampling, target: float, delta: float, accountant: Accountant
) -> float:
    def cost(noise: float, by: Accountant) -> float:
        return epsilon((Event(noise, rate, count, sampling),), delta, by)

    if cost(_MAX_NOISE, "rdp") > target:
        raise InvalidRequestError(
            "privacy.target",
            f"epsilon {target:g} at delta {delta:g} is below what can be accounted for",
            "choose a larger epsilon or delta",
        )
    low, high = 1.0, 1.0
    while cost(low, "rdp") <= target:
        high, low = low, low / 2
    while cost(high, "rdp") > target:
        low, high = high, high * 2
    if accountant == "rdp":
        return _least(low, high, lambda noise: cost(noise, "rdp") / target)
    high = _least(low, high, lambda noise: cost(noise, "rdp") / target, 1.01)
    while cost(high / 1.1, "prv") <= target:
        high /= 1.1
    return _least(high / 1.1, high, lambda noise: cost(noise, "prv") / target)


def _least(low: float, high: float, share: Callable[[float], float], tolerance: float = _TOLERANCE) -> float:
    """A noise of which ``share`` of the target is used, at most 1, and at most ``tolerance`` times the least such.

    ``share`` is above 1 at ``low`` and at most 1 at ``high``. By interpolating its logarithm over the noise's, slightly
    to either side in turn, so that both ends close in; every fourth step halves, whatever the shape.
    """
    above, below = share(low), share(high)
    for step in itertools.count(1):
        if high / low <= tolerance:
            break
        middle = math.sqrt(low * high)
        if step % 4 and math.isfinite(above) and below > 0:
            where = math.log(above) / (math.log(above) - math.log(below))
            aside = tolerance ** (0.4 if step % 2 else -0.4)
            middle = min(max(low * (high / low) ** where * aside, low * tolerance**0.2), high / tolerance**0.2)
        found = share(middle)
        if found <= 1:
            high, below = middle, found
        else:
            low, above = middle, found
    return high


@lru_cache(maxsize=1)
def _opacus() -> ModuleType:
    """Its accountants; imported here as it brings PyTorch along, which takes seconds."""
    try:
        import opacus.accountants  # noqa: PLC0415
        import opacus.accountants.analysis.rdp  # noqa: PLC0415
    except ImportError as error:
        raise SetupError(
            "privacy.opacus",
            f"a private run needs Opacus for its account: {error}",
            "pip install 'atoll[server,privacy]'",
        ) from error
    warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)  # of the bound by which it sizes its grid
    return cast("ModuleType", opacus.accountants)
