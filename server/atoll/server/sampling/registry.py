"""Samplers by name, each with what a privacy account may assume of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from atoll.server.sampling import samplers
from atoll.server.sampling.values import Cohort, Eligible, Request


class Amplification(StrEnum):
    """Which privacy amplification by sampling the draw itself allows.

    It speaks of the draw alone. A round that cuts at a goal, or draws only among those who happen to be connected, may
    still forfeit it, and the seed must be secret.

    POISSON: everyone independently with one known rate: accountants of the Poisson-subsampled mechanism.
    FIXED_SIZE: a uniformly random subset of known size: replace-one adjacency, sampling without replacement.
    NONE: who is drawn depends on the participants' data or behaviour: no amplification.
    """

    POISSON = "poisson"
    FIXED_SIZE = "fixed_size"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Sampler:
    """A way to draw cohorts.

    Attributes:
        name: as in a job file.
        choose: the pure function from request to chosen participants, sorted.
        amplification: what a privacy account may assume.
        uses_history: whether it looks at what is known of participants from before.
        fixed_size: whether it draws `size` participants when so many are eligible. If not, a round must wait for all of
            those drawn instead of closing at a goal.
    """

    name: str
    choose: Callable[[Request], tuple[Eligible, ...]]
    amplification: Amplification
    fixed_size: bool = True
    uses_history: bool = False

    def draw(self, request: Request) -> Cohort:
        """The cohort for the request, recorded so that it can be drawn again."""
        members = tuple((e.participant, e.examples) for e in self.choose(request))
        return Cohort(members, len(request.eligible), self.name, request.seed)


SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for sampler in (
        Sampler("uniform", samplers.uniform, Amplification.FIXED_SIZE),
        Sampler("poisson", samplers.poisson, Amplification.POISSON, fixed_size=False),
        Sampler("weighted", samplers.weighted, Amplification.NONE),
        Sampler("least_recent", samplers.least_recent, Amplification.NONE, uses_history=True),
        Sampler("availability", samplers.availability, Amplification.NONE, uses_history=True),
    )
}


def sampler_named(name: str) -> Sampler:
    """The sampler of that name.

    Raises:
        ValueError: there is none; the error lists those that there are.
    """
    try:
        return SAMPLERS[name]
    except KeyError:
        raise ValueError(f"sampler = {name!r}: must be one of {', '.join(SAMPLERS)}") from None
