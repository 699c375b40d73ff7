"""`[cohort]`: the participants of a round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SkipValidation

from atoll.server.jobs.section import JobTable
from atoll.settings.section import Hint

MAX_COHORT = 100_000

Sampler = Literal["uniform", "poisson", "weighted", "least_recent", "availability"]


def _default_quorum(found: dict[str, Any]) -> int:
    return 1 if found.get("sampler") == "poisson" else math.ceil(2 * found.get("size", 1) / 3)


def _check_required(found: object) -> object:
    """``all``, or a tuple of names.

    Raises:
        ValueError: for anything else.
    """
    if found == "all":
        return found
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) and name for name in found):
        raise ValueError('neither a list of names nor "all"')
    if len(set(found)) != len(found):
        raise ValueError("a name is given twice")
    return tuple(found)


class Cohort(JobTable):
    """The participants of a round."""

    size: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_COHORT,
            description='Reports wanted in each round. With `sampler = "poisson"`: expected number of invitations.',
        ),
    ]
    sampler: Annotated[
        Sampler,
        Field(
            description="How participants are drawn. `uniform`: without replacement, all with the same probability. "
            "`poisson`: each independently with the same probability. `weighted`: in proportion to declared examples. "
            "`least_recent`: the ones drawn longest ago. `availability`: in proportion to the probability of "
            "reporting in time, estimated from past online hours and report times."
        ),
    ] = "uniform"
    rate: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="With `poisson`: the probability of each participant, instead of `size` over the number of "
            "connected participants.",
        ),
        Hint(default="`size` over the participants connected"),
    ] = None
    over_selection: Annotated[
        float,
        Field(
            ge=1,
            le=10,
            description="Invitations per wanted report. The round closes at `size` reports; the other members are "
            "stopped.",
        ),
    ] = 1.0
    quorum: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_COHORT,
            description="Minimum reports of a valid round; with fewer, the round is tried again. 0 is allowed only "
            'with `sampler = "poisson"` or a `[privacy]` section; the round then waits for every member.',
        ),
        Hint(
            default='two thirds of `size`, rounded up; 1 with `sampler = "poisson"`; 0 with `[privacy]` and `poisson`'
        ),
    ] = Field(default_factory=_default_quorum)
    min_available: Annotated[
        int,
        Field(
            ge=1, le=MAX_COHORT, description="Number of participants that must be connected before a cohort is drawn."
        ),
        Hint(default="`size`"),
    ] = Field(default_factory=lambda found: found.get("size", 1))
    required: Annotated[
        SkipValidation[tuple[str, ...] | Literal["all"]],
        BeforeValidator(_check_required),
        Field(
            description="Participants that must report in every round, including evaluations: organisations or "
            "participants' ids, or `all` for every member of each cohort. A round waits until the named ones are "
            "connected, and always draws them. If one of them declines, fails or does not report in time, the round "
            "is tried again. After `straggler.max_attempts`, or if it fails twice with the same error, the run fails "
            "and says who was missing and why. Not with `[privacy]`."
        ),
        Hint(allowed='a list of different names, or "all"'),
    ] = ()
    seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,
            description="Seed that makes the draws reproducible. Leave it out in production: the server then chooses "
            "a secret seed and records it.",
        ),
        Hint(default="drawn by the server"),
    ] = None

    @property
    def invited(self) -> int:
        """Number of participants invited to a round: ``ceil(size * over_selection)``."""
        return math.ceil(self.size * self.over_selection)

    @property
    def requires_all(self) -> bool:
        """Whether every member of each cohort must report."""
        return self.required == "all"

    @property
    def required_names(self) -> tuple[str, ...]:
        """Organisations and ids of the participants that must report; empty if every member must."""
        return () if isinstance(self.required, str) else self.required

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check quorum and availability against the size, and refuse settings that Poisson sampling excludes."""
        if len(self.required_names) > self.size:
            yield "required", f"names {len(self.required_names)} participants; cohort.size {self.size} has no room"
        if self.sampler == "poisson" and self.required_names:
            yield (
                "required",
                'does not go with cohort.sampler "poisson", which draws each participant independently; allowed is '
                '"all", or choose another sampler',
            )
        if self.quorum > self.size:
            yield "quorum", f"is above cohort.size {self.size}; allowed are 1 to {self.size}"
        if self.min_available < self.quorum:
            yield (
                "min_available",
                f"is below cohort.quorum {self.quorum}, so rounds could never succeed; allowed from {self.quorum}",
            )
        if self.sampler != "poisson":
            yield from self.unused(("rate",), f'cohort.sampler is "{self.sampler}", and only "poisson" has a rate')
        if self.sampler == "poisson" and self.over_selection > 1:
            yield (
                "over_selection",
                'does not go with cohort.sampler "poisson", which waits for every member; set it to 1, or raise '
                "cohort.size",
            )
