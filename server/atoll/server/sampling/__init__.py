"""Drawing cohorts: pure functions of the eligible participants, their histories, seed, round and attempt.

`sampler_named("uniform").draw(DrawRequest(...))` gives a `Cohort`; equal requests give equal cohorts, in any
order of their participants. `uniform`, `poisson` and `least_recent` use integers and comparisons only, so this holds
across machines and numpy versions; `weighted` and `availability` take one logarithm of each random number, whose last
bit may differ between platforms.

A new sampler is a function in ``samplers``, a row in ``registry`` and a name in ``jobs.cohort_section``.
"""

from atoll.server.sampling.draw_request import Cohort, DrawRequest, Eligible, Everyone, History
from atoll.server.sampling.participation_limit import Participation, ParticipationLimit
from atoll.server.sampling.registry import SAMPLERS, Sampler, sampler_named

__all__ = [
    "SAMPLERS",
    "Cohort",
    "DrawRequest",
    "Eligible",
    "Everyone",
    "History",
    "Participation",
    "ParticipationLimit",
    "Sampler",
    "sampler_named",
]
