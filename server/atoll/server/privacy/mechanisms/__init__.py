"""Noise over a run's releases: ``mechanism_named("gaussian")`` gives a ``Mechanism``.

::

    state = mechanism.begin(new_secret())                                    # stored with the run
    noise = mechanism.round(state, version, binding, sigma, history)         # may be repeated
    noised = sums[start:stop] + noise.block(start, stop)
    state = mechanism.advance(state, version, binding, sigma, new_secret())  # stored in the transaction that releases
"""

from atoll.server.privacy.mechanisms.interface import KeptKey, Mechanism, NoiseState, NoiseStateError, RoundNoise
from atoll.server.privacy.mechanisms.keys import derived, new_secret
from atoll.server.privacy.mechanisms.registry import MECHANISMS, mechanism_named
from atoll.server.privacy.mechanisms.strategy import Strategy

__all__ = [
    "MECHANISMS",
    "KeptKey",
    "Mechanism",
    "NoiseState",
    "NoiseStateError",
    "RoundNoise",
    "Strategy",
    "derived",
    "mechanism_named",
    "new_secret",
]
