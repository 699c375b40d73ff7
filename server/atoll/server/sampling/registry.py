"""Samplers by name, each with what a privacy account may assume of it."""

from collections.abc import Callable
from dataclasses import dataclass

from atoll.server.sampling import samplers
from atoll.server.sampling.values import Cohort, Eligible, Request


@dataclass(frozen=True, slots=True)
class Sampler:
    """A way to draw cohorts.

    Attributes:
        name: as in a job file.
        choose: the pure function from request to chosen participants, sorted.
        uses_history: whether it looks at what is known of participants from before.
        independent: whether it draws each participant by itself, with one known probability. Only such a draw amplifies
            privacy: participants who know whether they were drawn then learn nothing of others' draws. Their number is
            random, so a round must wait for all of those drawn instead of closing at a goal. The other samplers draw
            `size` participants when so many are eligible.
    """

    name: str
    choose: Callable[[Request], tuple[Eligible, ...]]
    independent: bool = False
    uses_history: bool = False

    def draw(self, request: Request) -> Cohort:
        """The cohort for the request, recorded so that it can be drawn again."""
        members = tuple((e.participant, e.examples) for e in self.choose(request))
        return Cohort(members, len(request.eligible), self.name, request.seed)


SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for sampler in (
        Sampler("uniform", samplers.uniform),
        Sampler("poisson", samplers.poisson, independent=True),
        Sampler("weighted", samplers.weighted),
        Sampler("least_recent", samplers.least_recent, uses_history=True),
        Sampler("availability", samplers.availability, uses_history=True),
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
