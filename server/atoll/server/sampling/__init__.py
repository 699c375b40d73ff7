"""Drawing cohorts: pure functions of who is eligible, what is known of them, seed, round and attempt.

`sampler_named("uniform").draw(Request(...))` gives a `Cohort`; the same request gives the same cohort, whatever the
order of its participants. `uniform`, `poisson` and `least_recent` use integers and comparisons only, so that is true
across machines and numpy versions; `weighted` and `availability` take one logarithm of each random number, whose last
bit may differ between platforms.
"""

from atoll.server.sampling.participation import Participation, ParticipationLimit
from atoll.server.sampling.registry import SAMPLERS, Sampler, sampler_named
from atoll.server.sampling.values import Cohort, Eligible, History, Request

__all__ = [
    "SAMPLERS",
    "Cohort",
    "Eligible",
    "History",
    "Participation",
    "ParticipationLimit",
    "Request",
    "Sampler",
    "sampler_named",
]
