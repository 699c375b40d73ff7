"""Samplers by name, each with the properties that a privacy account relies on."""

from collections.abc import Callable
from dataclasses import dataclass

from atoll.server.sampling import samplers
from atoll.server.sampling.draw_request import Cohort, DrawRequest, Eligible


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampling rule and its properties.

    Attributes:
        name: its name in a job file.
        choose: the pure function from request to chosen participants, sorted.
        uses_history: whether it reads the histories of participants.
        independent: whether it draws each participant independently, with one known probability. Only such a draw
            amplifies privacy: participants who know whether they were drawn learn nothing about other draws. The
            cohort's size is random, so a round waits for all members instead of closing at a goal. The other samplers
            draw `size` participants if so many are eligible.
    """

    name: str
    choose: Callable[[DrawRequest], tuple[Eligible, ...]]
    independent: bool = False
    uses_history: bool = False

    def draw(self, request: DrawRequest) -> Cohort:
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
        ValueError: there is no such sampler; the error lists the names.
    """
    try:
        return SAMPLERS[name]
    except KeyError:
        raise ValueError(f"sampler = {name!r}: must be one of {', '.join(SAMPLERS)}") from None
