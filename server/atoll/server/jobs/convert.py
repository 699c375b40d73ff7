"""Converts a job to the policies of engine and aggregation."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from atoll.server.jobs.refusals import has_secret_draw
from atoll.server.rounds.judging import Criterion, Mode, StopRule
from atoll.server.rounds.policy import LateMode, LatePolicy, Patience, RunPolicy, StragglerPolicy, Weighting
from atoll.server.sampling.participation_limit import ParticipationLimit
from atoll.server.sampling.report_window import FixedReportWindow, LearnedReportWindow, ReportWindow

if TYPE_CHECKING:
    from atoll.server.aggregation.optimisers import ServerOptimiser
    from atoll.server.jobs.spec import JobSpec
    from atoll.wire.layout import Layout


def to_run_policy(spec: JobSpec) -> RunPolicy:
    """The engine's rules for this job."""
    cohort, straggler = spec.cohort, spec.straggler
    return RunPolicy(
        rounds=spec.job.rounds,
        straggler=StragglerPolicy(
            cohort_size=cohort.size,
            over_selection=cohort.over_selection,
            patience=_patience_of(spec),
            quorum=cohort.quorum,
            refused_count=spec.privacy is not None,
            late=LatePolicy(LateMode(straggler.late), straggler.carried_rounds, straggler.exponent),
            max_attempts=straggler.max_attempts,
            retry_delay_s=straggler.retry_delay_s,
        ),
        evaluate_every=spec.evaluation.every,
        final_evaluation=spec.evaluation.final,
        weighting=Weighting(spec.aggregation.weighting),
        max_weight=spec.aggregation.max_weight,
        max_abs=spec.aggregation.max_abs,
        best=None if spec.best is None else _criterion(*spec.best),
        stop=_stop_rule(spec),
    )


def _criterion(metric: str, mode: str) -> Criterion:
    return Criterion(metric, Mode(mode))


def _stop_rule(spec: JobSpec) -> StopRule | None:
    stop = spec.stop
    return None if stop is None else StopRule(_criterion(stop.metric, stop.mode), stop.patience, stop.min_delta)


def _patience_of(spec: JobSpec) -> Patience:
    if has_secret_draw(spec):
        return Patience.DEADLINE
    everybody = spec.cohort.sampler == "poisson" or spec.cohort.quorum == 0
    return Patience.ALL if everybody else Patience.GOAL


def participation_limit_of(spec: JobSpec) -> ParticipationLimit | None:
    """The participation bound that the draw must enforce, or None."""
    privacy = spec.privacy
    if privacy is None or privacy.max_participations is None:
        return None
    return ParticipationLimit(privacy.max_participations, privacy.min_separation or 1)


def optimiser_of(spec: JobSpec) -> ServerOptimiser:
    """The job's server optimiser."""
    from atoll.server.aggregation.optimisers import optimiser_named  # noqa: PLC0415  # the command line parses jobs too

    return optimiser_named(spec.optimiser.name, spec.optimiser.settings)


def averaged_tensors(spec: JobSpec, layout: Layout) -> frozenset[str]:
    """The tensors of the layout that take the plain mean under any optimiser."""
    return frozenset(
        tensor.name
        for tensor in layout.tensors
        if any(fnmatchcase(tensor.name, pattern) for pattern in spec.aggregation.averaged)
    )


def report_window_of(spec: JobSpec) -> ReportWindow:
    """The report window of the job's rounds."""
    learned = spec.straggler.learned
    if learned is None:
        return FixedReportWindow(spec.straggler.report_window_s)
    return LearnedReportWindow(
        quantile=learned.quantile,
        factor=learned.factor,
        min_s=learned.min_s,
        max_s=learned.max_s,
        initial_s=learned.initial_s,
    )


def expected_window_s(spec: JobSpec) -> float:
    """The shortest possible report window in seconds, for samplers that use report times."""
    learned = spec.straggler.learned
    return spec.straggler.report_window_s if learned is None else learned.initial_s
