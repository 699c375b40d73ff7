"""The tables of a job file as frozen values: one class per section; the field descriptions are the job reference.

``docs/job-reference.md`` is generated from this file (``python -m atoll.server.jobs.reference``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SkipValidation, field_validator, model_serializer

from atoll.server.jobs.privacy_section import Privacy
from atoll.server.jobs.section import JobTable
from atoll.server.jobs.statistics_section import Statistics
from atoll.server.jobs.training import Settings, TrainingSettings
from atoll.settings.section import Hint, Section
from atoll.settings.write import given
from atoll.wire.encoding import Encoding

MAX_ROUNDS = 1_000_000
MAX_COHORT = 100_000
MAX_FROZEN = 256
"""As many patterns as participants take."""
MAX_FRAGMENTS = 64
MAX_SECONDS = 30 * 86_400

METRIC_PATTERN = r"^(eval|server)/[^\x00-\x20\x7f]([^\x00-\x1f\x7f]{0,126}[^\x00-\x20\x7f])?$"
METRIC_FORM = "`eval/NAME` or `server/NAME`"
MODE_FORM = '"min" (lower is better, as for a loss) or "max" (higher is better, as for an accuracy)'

Sampler = Literal["uniform", "poisson", "weighted", "least_recent", "availability"]
OptimiserName = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


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


class JobSection(JobTable):
    """Name and length of the run."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$", description="Shown in lists, logs and reports."),
        Hint(allowed="1 to 64 letters, digits, spaces, dots, dashes or underscores, the first a letter or digit"),
    ]
    rounds: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Number of models released after the initial one. With `[statistics]` it follows: leave it "
            "out.",
        ),
    ]
    seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,
            description="Participants' random numbers follow from it: `task.seed` is a hash of this seed, the round "
            "and the participant. Noise and the draw of a cohort never do.",
        ),
        Hint(default="drawn by the server and kept with the run"),
    ] = None


class ModelSection(JobTable):
    """The initial model."""

    initial: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="safetensors file with the initial weights, relative to the job file. Read by `atoll run "
            "submit`, which sends it; the server never opens a path from a job. From Python the weights may be given "
            "as arrays instead, and the section left out.",
        ),
        Hint(allowed="the path of a .safetensors file"),
    ]


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
            "`least_recent`: those drawn longest ago. `availability`: in proportion to the probability of reporting "
            "in time, estimated from past hours and speed."
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
            description="Fewest reports of a valid round; with fewer the round is tried again. 0 only with "
            '`sampler = "poisson"` or a `[privacy]` section: the round then waits for every member.',
        ),
        Hint(
            default='two thirds of `size`, rounded up; 1 with `sampler = "poisson"`; 0 with `[privacy]` and `poisson`'
        ),
    ] = Field(default_factory=_default_quorum)
    min_available: Annotated[
        int,
        Field(ge=1, le=MAX_COHORT, description="Participants that must be connected before a cohort is drawn."),
        Hint(default="`size`"),
    ] = Field(default_factory=lambda found: found.get("size", 1))
    required: Annotated[
        SkipValidation[tuple[str, ...] | Literal["all"]],
        BeforeValidator(_check_required),
        Field(
            description="Participants without which no round counts, evaluations included: organisations or "
            "participants' ids, or `all` for every member of each cohort. A round waits until those that are named are "
            "connected, and always draws them. If one of them declines, fails or does not report in time, the round is "
            "tried again; after `straggler.max_attempts`, or if it fails twice with the same error, the run fails and "
            "says who was missing and why. Not with `[privacy]`."
        ),
        Hint(allowed='a list of different names, or "all"'),
    ] = ()
    seed: Annotated[
        int | None,
        Field(
            ge=0,
            lt=2**63,
            description="Makes the draws reproducible. Leave it out in production: the server then chooses a secret "
            "seed and records it.",
        ),
        Hint(default="drawn by the server"),
    ] = None

    @property
    def invited(self) -> int:
        """Participants invited to a round: ``ceil(size * over_selection)``."""
        return math.ceil(self.size * self.over_selection)

    @property
    def requires_all(self) -> bool:
        """Whether every member of each cohort must count."""
        return self.required == "all"

    @property
    def required_names(self) -> tuple[str, ...]:
        """Organisations and ids of the participants that must count; none where every member must."""
        return () if isinstance(self.required, str) else self.required

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Check quorum and availability against the size, and settings that Poisson sampling excludes."""
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


class LearnedWindow(JobTable):
    """A report window learned from past report times instead of `report_window_s`.

    The window is the `quantile` of the cohort's expected report times, times `factor`, between `min_s` and `max_s`.
    """

    quantile: Annotated[float, Field(gt=0, le=1, description="Share of the cohort that should report in time.")] = 0.9
    factor: Annotated[float, Field(ge=1, le=100, description="Factor on the learned time.")] = 1.5
    min_s: Annotated[Seconds, Field(description="Shortest window.")] = 5.0
    max_s: Annotated[Seconds, Field(description="Longest window.")] = 3600.0
    initial_s: Annotated[Seconds, Field(description="Window before any report times are known.")] = 600.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The bounds must be in order."""
        if self.min_s > self.max_s:
            yield "min_s", f"is above max_s {self.max_s:g}"
        elif not self.min_s <= self.initial_s <= self.max_s:
            yield "initial_s", f"is not between min_s {self.min_s:g} and max_s {self.max_s:g}"


class Straggler(JobTable):
    """How long a round waits, and what happens to late reports."""

    report_window_s: Annotated[
        Seconds,
        Field(
            description="Seconds from the invitation to the deadline. Not with `learned`. A private round whose "
            "account relies on a random draw always lasts this long."
        ),
    ] = 600.0
    learned: Annotated[
        LearnedWindow | None,
        Field(description="Learn the window instead, e.g. `learned = { quantile = 0.9, factor = 1.5 }`."),
        Hint(allowed="a table, see below", default="not learned"),
    ] = None
    late: Annotated[
        Literal["drop", "carry"],
        Field(
            description="`drop`: a report after the deadline is not used. `carry`: it counts in the next round, with "
            "weight times (1 + rounds late) ^ -`exponent`."
        ),
    ] = "drop"
    max_staleness: Annotated[
        int, Field(ge=1, le=1000, description="With `carry`: number of rounds after which a late report is dropped.")
    ] = 2
    exponent: Annotated[
        float, Field(ge=0, le=10, description="With `carry`: how fast a late report loses weight; with 0 it does not.")
    ] = 0.5
    max_attempts: Annotated[
        int, Field(ge=1, le=1000, description="Attempts at one round before the run fails without a quorum.")
    ] = 5
    retry_delay_s: Annotated[
        float, Field(ge=0, le=MAX_SECONDS, description="Seconds between a missed quorum and the next attempt.")
    ] = 5.0

    @property
    def carried_rounds(self) -> int:
        """Number of rounds in which a late report may still count; 0 if late reports are dropped."""
        return self.max_staleness if self.late == "carry" else 0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """One kind of window; no carry settings when late reports are dropped."""
        if self.learned is not None:
            yield from self.unused(("report_window_s",), "straggler.learned sets the window")
        if self.late == "drop":
            yield from self.unused(("max_staleness", "exponent"), 'straggler.late is "drop"')


_QUANTISED = {"int8": Encoding.INT8_BLOCK, "int4": Encoding.INT4_BLOCK}


class Aggregation(JobTable):
    """How updates are combined."""

    weighting: Annotated[
        Literal["examples", "uniform"],
        Field(
            description="`examples`: an update counts by its number of examples. `uniform`: all updates count the same."
        ),
    ] = "examples"
    max_weight: Annotated[
        int,
        Field(
            ge=1,
            le=2**32,
            description="With `examples`: the largest number of examples that one participant may count for.",
        ),
    ] = 100_000
    max_abs: Annotated[
        float,
        Field(
            ge=2.0**-24,
            le=2.0**20,
            description="Largest magnitude of an element of an update; a larger element rejects the whole update. A "
            "smaller value makes the sum finer.",
        ),
        Hint(allowed="a power of two from 2^-24 to 2^20"),
    ] = 32.0
    averaged: Annotated[
        tuple[str, ...],
        Field(
            strict=False,  # TOML has lists
            max_length=256,
            description="Tensors (names, with `*` and `?`) that take the plain mean under any server optimiser: "
            "statistics such as batch norm's, which must not gather momentum. A private job is "
            "refused if its model has any: noise would ruin them.",
        ),
        Hint(allowed="a list of names or patterns"),
    ] = ("*running_mean", "*running_var")
    frozen: Annotated[
        tuple[str, ...],
        Field(
            strict=False,  # TOML has lists
            max_length=MAX_FROZEN,
            description="Tensors (names, with `*` and `?`) that are handed out with the model and never changed: "
            "participants neither train nor send them, and they get no noise. They come last in the run's models. A "
            "pattern that matches no tensor, or all of them together, is refused when the job is submitted.",
        ),
        Hint(allowed="a list of names or patterns", default="none"),
    ] = ()
    fragments: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_FRAGMENTS,
            description="Parts of the model of which each training round updates one, in turn (streaming DiLoCo): "
            "participants train the whole model and send that part of the update. Parts are whole tensors in the order "
            "of the file, with nearly equal numbers of elements; there are at most as many parts as tensors. Weights "
            "and server optimiser state of the other parts stay as they are.",
        ),
    ] = 1
    encoding: Annotated[
        Literal["float32", "bfloat16", "float16", "float64", "int8", "int4"],
        Field(
            description="Encoding of updates on the wire. 16-bit encodings halve the bytes and round the update. "
            "`int8` and `int4` send integers with a scale for every 128 elements, 8.25 and 4.25 bits each: an element "
            "is off by at most 1/254 and 1/14 of its block's largest magnitude. Participants that do not support the "
            "encoding are not invited.",
        ),
    ] = "float32"

    @field_validator("max_abs")
    @classmethod
    def _power_of_two(cls, value: float) -> float:
        if math.frexp(value)[0] != 0.5:
            raise ValueError("not a power of two")
        return value

    @property
    def wire_encoding(self) -> Encoding:
        """The encoding that participants must use."""
        return _QUANTISED.get(self.encoding) or Encoding[self.encoding.upper()]

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """No weight bound without weights."""
        if self.weighting == "uniform":
            yield from self.unused(("max_weight",), 'aggregation.weighting is "uniform"')


_ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
_USED_BY: dict[str, tuple[str, ...]] = {
    "momentum": ("fedavgm",),
    "nesterov": ("fedavgm",),
    "beta1": _ADAPTIVE,
    "beta2": ("fedadam", "fedyogi"),
    "tau": _ADAPTIVE,
}


class Optimiser(JobTable):
    """How the server applies the mean update (Reddi et al. 2021, "Adaptive Federated Optimization")."""

    name: Annotated[
        OptimiserName,
        Field(description="`fedavg` adds the mean update; the others treat it as a gradient (pseudo-gradient)."),
    ] = "fedavg"
    lr: Annotated[
        float,
        Field(gt=0, le=1000, description="Server learning rate."),
        Hint(default="1.0 for `fedavg` and `fedavgm`, 0.01 for the adaptive ones"),
    ] = Field(default_factory=lambda found: 0.01 if found.get("name") in _ADAPTIVE else 1.0)
    momentum: Annotated[float, Field(ge=0, lt=1, description="`fedavgm`: share of the last step that is kept.")] = 0.9
    nesterov: Annotated[bool, Field(description="`fedavgm`: look one step ahead.")] = False
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adaptive optimisers: decay of the first moment.")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="`fedadam`, `fedyogi`: decay of the second moment.")] = 0.99
    tau: Annotated[float, Field(gt=0, le=1, description="Adaptive optimisers: degree of adaptivity.")] = 1e-3

    @property
    def settings(self) -> dict[str, float]:
        """The parameters of this optimiser, without those of the others."""
        return {"lr": self.lr} | {key: getattr(self, key) for key, names in _USED_BY.items() if self.name in names}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """No parameter of another optimiser."""
        for key, optimisers in _USED_BY.items():
            if self.name not in optimisers:
                yield from self.unused((key,), f"it belongs to {', '.join(optimisers)}, not to {self.name}")


class IterateAveraging(JobTable):
    """A mean of the released models, kept beside the newest one (`atoll run model --averaged`).

    It costs no privacy and averages the noise; whether it is better than the last model depends on the job.
    Participants train on the models themselves. The server's evaluator evaluates both; its metrics of the mean are
    named `server/averaged/...`. Only the newest mean is kept, as long as the last model. All models weigh the same
    until there are 1 / (1 - decay); then each release multiplies the weights of earlier ones by `decay`.
    """

    decay: Annotated[
        float,
        Field(ge=0, le=0.9999, description="0.9 averages about the last ten models, 0.95 the last twenty."),
    ] = 0.9


class Evaluation(JobTable):
    """How models are evaluated."""

    before_training: Annotated[
        bool,
        Field(
            description="Participants also evaluate the model that they receive, before they train from it, and send "
            "both in one report: costs no extra transfer."
        ),
        Hint(default="true; false with `[privacy]`"),
    ] = True
    every: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_ROUNDS,
            description="After this many training rounds, a separate round in which participants evaluate the new "
            "model; 0: never.",
        ),
    ] = 0
    final: Annotated[
        bool,
        Field(description="Participants evaluate the final model in a separate round."),
        Hint(default="true; false with `[privacy]`"),
    ] = True
    server: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z][a-z0-9_-]{0,63}$",
            description="Name of an evaluator that the operator installed (`atoll server start --evaluator "
            "NAME=MODULE:FUNCTION`); it evaluates every released model on the server.",
        ),
        Hint(allowed="the name of an installed evaluator", default="none"),
    ] = None


class Retention(JobTable):
    """Which models the server keeps. The first and the last are always kept."""

    models: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Newest models kept while the run is active, and for a while after.",
        ),
        Hint(default="the server's `keep_models`"),
    ] = None
    best: Annotated[
        str | None,
        Field(
            pattern=METRIC_PATTERN,
            description="The metric that decides which model is the best; that model is kept too. `eval/NAME`: of the "
            "participants' evaluations. `server/NAME`: of the server's evaluator.",
        ),
        Hint(allowed=METRIC_FORM, default="`stop.metric`, if there is a `[stop]` section; else none"),
    ] = None
    mode: Annotated[
        Literal["max", "min"] | None,
        Field(description="Which values of that metric are better; no metric has a default."),
        Hint(allowed=MODE_FORM, default="**required** with `best`"),
    ] = None

    @property
    def criterion(self) -> tuple[str, str] | None:
        """The metric that decides and its mode; None if this section names no metric."""
        return None if self.best is None or self.mode is None else (self.best, self.mode)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A metric and its mode go together."""
        if self.best is None:
            yield from self.unused(("mode",), "retention.best names no metric")
        elif self.mode is None:
            yield "mode", f"is missing; needed for {self.best} is {MODE_FORM}"


class Stop(JobTable):
    """Early stopping: the run ends before `job.rounds` once its models get no better.

    A model is measured by the evaluations of the round that hands it out (`eval/NAME`), or by the server when it is
    released (`server/NAME`). The final evaluation still takes place.
    """

    metric: Annotated[
        str,
        Field(
            pattern=METRIC_PATTERN,
            description="The metric that decides: `eval/NAME` of the participants' evaluations, or `server/NAME` of "
            "the server's evaluator.",
        ),
        Hint(allowed=METRIC_FORM),
    ]
    mode: Annotated[
        Literal["max", "min"],
        Field(description="Which values of that metric are better; no metric has a default."),
        Hint(allowed=MODE_FORM),
    ]
    patience: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_ROUNDS,
            description="Measured models in a row without an improvement after which the run ends.",
        ),
    ]
    min_delta: Annotated[
        float,
        Field(
            ge=0, le=1e9, description="A model is an improvement if it is better than the best one by more than this."
        ),
    ] = 0.0


class JobTables(Section):
    """A job file whose tables are valid one by one. ``JobSpec`` is valid as a whole."""

    job: JobSection
    model: ModelSection | None = None
    cohort: Cohort
    straggler: Straggler = Field(default_factory=Straggler)
    aggregation: Aggregation = Field(default_factory=Aggregation)
    optimiser: Optimiser = Field(default_factory=Optimiser)
    training: TrainingSettings = Field(default_factory=lambda: Settings({}))
    evaluation: Evaluation = Field(default_factory=Evaluation)
    retention: Retention = Field(default_factory=Retention)
    stop: Stop | None = None
    iterate_averaging: IterateAveraging | None = None
    privacy: Privacy | None = None
    statistics: Statistics | None = None

    @model_serializer
    def _tables(self) -> dict[str, object]:
        """The file: the keys that were given. A default that does not apply to the job is refused where it is given."""
        return {name: dict(table) if isinstance(table, Mapping) else table for name, table in given(self).items()}
