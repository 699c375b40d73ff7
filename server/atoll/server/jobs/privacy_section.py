"""``[privacy]``: the section of the job file on differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.server.jobs.section import MAX_ROUNDS, JobTable
from atoll.settings.section import Hint

MIN_DELTA, MAX_DELTA = 1e-15, 1e-2
"""Below, floats are not precise enough; above, the guarantee is empty."""
POPULATION_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
MAX_BANDS = 64
DEFAULT_BANDS = 32

MAX_BUFFERS = 5
"""As ``privacy.mechanisms.strategy``, which jobs are read without."""

MAX_CLIP = 1e9
"""Largest clip norm."""

Mechanism = Literal["gaussian", "blt", "banded", "tree"]
Unit = Literal["participant", "row"]


class AdaptiveClip(JobTable):
    """A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021, arXiv:1905.03871).

    Each round releases how many updates were within the norm, with noise, and the norm moves towards the quantile. The
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
    Sensitivity follows from sampler, weighting and clipping; it is not a setting. Combinations without a valid account
    are refused.
    """

    population: Annotated[
        str,
        Field(
            pattern=POPULATION_PATTERN,
            description="The population whose budget the run uses: runs that may draw the same participants name "
            "the same population, and their costs add up.",
        ),
        Hint(allowed="1 to 63 lower-case letters, digits, dots, dashes or underscores, the first a letter or digit"),
    ]
    epsilon: Annotated[
        float | None,
        Field(
            gt=0,
            le=1000,
            description="Target over all planned rounds; the least noise that meets it is computed. Alternative: "
            "`noise_multiplier`.",
        ),
        Hint(default="none"),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Field(
            ge=1e-6,
            le=1e6,
            description="Noise instead of a target: its standard deviation on the sum, over the largest norm that one "
            "participant can have there.",
        ),
        Hint(default="follows from `epsilon`"),
    ] = None
    delta: Annotated[
        float,
        Field(
            ge=MIN_DELTA,
            le=MAX_DELTA,
            description="Probability with which the guarantee may fail: well below 1 / (size of the population).",
        ),
    ]
    mechanism: Annotated[
        Mechanism,
        Field(
            description="`gaussian`: fresh noise every round. `blt` (buffered linear Toeplitz), `banded` (matrix "
            "factorisation) and `tree` (DP-FTRL): noise that cancels in part from round to round, for cohorts that "
            "cannot be drawn at random; they need `max_participations`, and all but `blt` need `min_separation`. Of "
            "these `blt` has the least noise in long runs, and keeps the fewest vectors."
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
            description="L2 norm to which the server clips every update. Alternative: `adaptive`. With `[statistics]` "
            "it follows: leave it out.",
        ),
        Hint(default="none"),
    ] = None
    adaptive: Annotated[
        AdaptiveClip | None,
        Field(description="A norm that follows the updates' norms, e.g. `adaptive = { initial = 1.0 }`."),
        Hint(allowed="a table, see below", default="none"),
    ] = None
    report_noise: Annotated[
        float | None,
        Field(
            ge=2**-4,
            le=1e6,
            description="With `poisson` and `gaussian`: each round also releases how many reported, with noise of this "
            "standard deviation in participants, and the run pauses once it is clear that less than half of "
            "`cohort.size` report. More noise on the updates pays for it: about 0.5 % at ten times the "
            "noise multiplier. Without it, rounds without reports are released and charged until an operator "
            "pauses the run.",
        ),
        Hint(default="not counted"),
    ] = None
    unit: Annotated[
        Unit,
        Field(
            description="What is protected. `row`: one row of one participant's table, with `[statistics]` alone; the "
            "participants' figures themselves are not hidden. Runs of one population have one unit."
        ),
    ] = "participant"
    accountant: Annotated[
        Literal["prv", "rdp"] | None,
        Field(
            description="`prv` adds up privacy loss distributions numerically, and is the tighter one; `rdp` adds up "
            "Rényi divergences."
        ),
        Hint(default="`prv`"),
    ] = None
    max_participations: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Largest number of rounds for which one participant is drawn; enforced by the draw. Needed "
            "wherever the account does not rely on a random draw.",
        ),
        Hint(default="none"),
    ] = None
    min_separation: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Fewest rounds from one participation to the next of the same participant, e.g. 3: in round 1, "
            "then 4 at the earliest; enforced by the draw.",
        ),
        Hint(default="1; needed by `banded` and `tree`"),
    ] = None
    bands: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_BANDS,
            description="With `banded`: rounds over which noise cancels, at most `min_separation`. The server keeps "
            "one vector of noise less than that.",
        ),
        Hint(default=f"`min_separation`, at most {DEFAULT_BANDS}"),
    ] = None

    buffers: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_BUFFERS,
            description="With `blt`: vectors that the server keeps, 8 bytes for each parameter.",
        ),
        Hint(default="the fewest with which noise is within half a percent of the least"),
    ] = None

    @property
    def first_clip(self) -> float:
        """The clip norm of the first round; of all rounds unless it is adaptive."""
        if self.adaptive is not None:
            return self.adaptive.initial
        return self.clip or 0.0  # a valid section has one of them

    @property
    def bands_used(self) -> int:
        """Bands of the banded mechanism."""
        return self.bands or min(self.min_separation or 1, DEFAULT_BANDS)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """One target, one clip, and the keys of the mechanism."""
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
