"""``[privacy]``: the section of the job file on differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.server.jobs.section import MAX_ROUNDS, JobTable
from atoll.settings.section import Hint

MIN_DELTA, MAX_DELTA = 1e-15, 1e-2
"""Bounds: below the first, floats are not precise enough; above the second, the guarantee is empty."""
POPULATION_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
MAX_BANDS = 64
DEFAULT_BANDS = 32

MAX_BUFFERS = 5
"""As in ``privacy.mechanisms.strategy``, which is not imported to read jobs."""

MAX_CLIP = 1e9
"""Largest clip norm."""

Mechanism = Literal["gaussian", "blt", "banded", "tree"]
Unit = Literal["participant", "row"]


class AdaptiveClip(JobTable):
    """A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021, arXiv:1905.03871).

    Each round releases, with noise, how many updates were within the norm, and the norm moves towards the quantile. The
    count has a privacy cost, so the noise on the updates is larger.
    """

    initial: Annotated[float, Field(gt=0, le=MAX_CLIP, description="Norm of the first round.")]
    quantile: Annotated[
        float, Field(gt=0, lt=1, description="Share of the updates that should be within the norm.")
    ] = 0.5
    learning_rate: Annotated[
        float,
        Field(gt=0, le=2, description="How fast the norm moves: it is multiplied by exp(-rate * (share - quantile))."),
    ] = 0.2
    count_noise: Annotated[
        float | None,
        Field(ge=2**-5, le=1e6, description="Standard deviation of the noise on the count, in participants."),
        Hint(default="`cohort.size` / 20"),
    ] = None


class Privacy(JobTable):
    """Central differential privacy of participants: the server adds noise, and charges each release to a ledger.

    The unit is one participant, with everything that it sends in all rounds; with `[statistics]` it may be a row.
    The sensitivity follows from sampler, weighting and clipping; it is not a setting. Combinations without a valid
    account are refused.
    """

    population: Annotated[
        str,
        Field(
            pattern=POPULATION_PATTERN,
            description="The population whose budget the run spends. Runs that may draw the same participants must "
            "name the same population, and their costs add up.",
        ),
        Hint(allowed="1 to 63 lower-case letters, digits, dots, dashes or underscores, the first a letter or digit"),
    ]
    epsilon: Annotated[
        float | None,
        Field(
            gt=0,
            le=1000,
            description="Target epsilon over all planned rounds; the server computes the least noise that meets it. "
            "Alternative: `noise_multiplier`.",
        ),
        Hint(default="none"),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Field(
            ge=1e-6,
            le=1e6,
            description="Noise instead of a target: its standard deviation on the sum, divided by the largest norm of "
            "one participant's contribution.",
        ),
        Hint(default="follows from `epsilon`"),
    ] = None
    delta: Annotated[
        float,
        Field(
            ge=MIN_DELTA,
            le=MAX_DELTA,
            description="Probability that the guarantee fails; choose it well below 1 / (size of the population).",
        ),
    ]
    mechanism: Annotated[
        Mechanism,
        Field(
            description="`gaussian`: fresh noise every round. `blt` (buffered linear Toeplitz), `banded` (matrix "
            "factorisation) and `tree` (DP-FTRL): noise that partly cancels from round to round, for cohorts that "
            "cannot be drawn at random. These three need `max_participations`, and all but `blt` need "
            "`min_separation`; `blt` has the least noise in long runs and keeps the fewest vectors."
        ),
        Hint(
            default="`blt` with `max_participations`, a sampler other than `poisson`, `clip` and one fragment; else "
            "`gaussian`"
        ),
    ] = "gaussian"
    clip: Annotated[
        float | None,
        Field(
            gt=0,
            le=MAX_CLIP,
            description="L2 norm to which the server clips every update. Alternative: `adaptive`. Leave it out with "
            "`[statistics]`, from which it follows.",
        ),
        Hint(default="none"),
    ] = None
    adaptive: Annotated[
        AdaptiveClip | None,
        Field(description="A clip norm that follows the updates' norms, e.g. `adaptive = { initial = 1.0 }`."),
        Hint(allowed="a table, see below", default="none"),
    ] = None
    report_noise: Annotated[
        float | None,
        Field(
            ge=2**-4,
            le=1e6,
            description="With `poisson` and `gaussian`: each round also releases the number of reports, with noise of "
            "this standard deviation in participants, and the run pauses once it is clear that less than half of "
            "`cohort.size` report. The updates get more noise to compensate: about 0.5 % more if this is ten times "
            "the noise multiplier. Without it, rounds without reports are released and charged until an operator "
            "pauses the run.",
        ),
        Hint(default="not counted"),
    ] = None
    unit: Annotated[
        Unit,
        Field(
            description="The unit of privacy. `row`: one row of one participant's table, only with `[statistics]`; "
            "the participants' figures themselves are not hidden. All runs of a population have the same unit."
        ),
    ] = "participant"
    accountant: Annotated[
        Literal["prv", "rdp"] | None,
        Field(
            description="`prv` composes privacy loss distributions numerically and is the tighter one; `rdp` adds up "
            "Rényi divergences."
        ),
        Hint(default="`prv`"),
    ] = None
    max_participations: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Maximum number of rounds for which one participant is drawn; enforced by the draw. Needed "
            "whenever the account does not rely on a random draw.",
        ),
        Hint(default="none"),
    ] = None
    min_separation: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Minimum number of rounds from one participation to the next of the same participant. With 3, "
            "a participant of round 1 is next drawn in round 4 at the earliest. Enforced by the draw.",
        ),
        Hint(default="1; needed by `banded` and `tree`"),
    ] = None
    bands: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_BANDS,
            description="With `banded`: number of rounds over which noise cancels, at most `min_separation`. The "
            "server keeps one noise vector fewer.",
        ),
        Hint(default=f"`min_separation`, at most {DEFAULT_BANDS}"),
    ] = None

    buffers: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_BUFFERS,
            description="With `blt`: number of vectors that the server keeps, with 8 bytes per parameter.",
        ),
        Hint(default="the fewest with which noise is within half a percent of the least"),
    ] = None

    @property
    def first_clip(self) -> float:
        """The clip norm of the first round; of all rounds unless it is adaptive."""
        if self.adaptive is not None:
            return self.adaptive.initial
        return self.clip or 0.0  # a valid section has one of the two

    @property
    def bands_used(self) -> int:
        """Number of bands of the banded mechanism."""
        return self.bands or min(self.min_separation or 1, DEFAULT_BANDS)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check that there is one target, one clip, and the mechanism's keys."""
        if (self.epsilon is None) == (self.noise_multiplier is None):
            yield "epsilon", "give exactly one of epsilon and noise_multiplier"
        if self.clip is not None and self.adaptive is not None:
            yield "clip", "give exactly one of clip and adaptive"
        if self.mechanism != "banded":
            yield from self.unused(("bands",), f'privacy.mechanism is "{self.mechanism}"')
        if self.mechanism != "blt":
            yield from self.unused(("buffers",), f'privacy.mechanism is "{self.mechanism}"')
        if self.mechanism != "gaussian":
            yield from self._of_correlated_noise()

    def _of_correlated_noise(self) -> Iterator[tuple[str, str]]:
        for key in ("max_participations",) if self.mechanism == "blt" else ("max_participations", "min_separation"):
            if getattr(self, key) is None:
                yield key, f'is needed by mechanism "{self.mechanism}", whose cost depends on it; give it'
        if self.adaptive is not None:
            yield (
                "adaptive",
                f'does not go with mechanism "{self.mechanism}": noise of different rounds cancels only at one norm; '
                'give clip, or choose mechanism "gaussian"',
            )
        if self.mechanism == "banded" and self.bands_used > (self.min_separation or MAX_ROUNDS):
            yield (
                "bands",
                f"{self.bands_used} bands are more than min_separation {self.min_separation}: one participant's rounds "
                f"would share noise, and no bound holds; allowed are 1 to {self.min_separation}",
            )
