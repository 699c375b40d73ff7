"""Converts the engine's rounds and members to the rows that ``atoll run show`` reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from atoll.server.rounds import Member, MemberStatus, RoundState
from atoll.server.runs.scores import EVALUATION, PooledScores
from atoll.server.stores import reports, rounds
from atoll.server.telemetry.durations import phase_seconds
from atoll.text.printable import printable
from atoll.wire.v1 import transfer_pb2

EVALUATION_WEIGHT = "eval/examples"
TRAINING = "train/"
MAX_MEANS = 64
"""Maximum number of metric names of each kind in a round's means, equal to the maximum in one report."""
MAX_CLAIM_S = 90 * 86_400.0
"""Longest credible duration of a step of a task: the longest lifetime of a certificate."""


def report_metrics(
    training: Mapping[str, float], evaluation: Mapping[str, float], evaluation_weight: int
) -> tuple[tuple[str, float], ...]:
    """A report's metrics as ``train/...`` and ``eval/...``, the latter with its number of examples.

    Names are made printable.
    """
    found = {TRAINING + printable(name): value for name, value in training.items()}
    found.update({EVALUATION + printable(name): value for name, value in evaluation.items()})
    if evaluation:
        found[EVALUATION_WEIGHT] = float(evaluation_weight)
    return tuple(sorted(found.items()))


def metrics_of(members: Iterable[Member], max_weight: int) -> dict[str, float]:
    """Weighted means over the members that reported: training metrics by weight, evaluation metrics by examples.

    ``eval/examples`` is the sum of the examples. A member counts for at most what it declared at check-in (at least 1)
    and at most ``max_weight`` (``RunPolicy.max_weight``). At most ``MAX_MEANS`` names of each kind are kept: those that
    most members reported, ties by name. A mean that is not finite is left out. A score histogram's metric is the AUC of
    the summed histograms. The result is deterministic, since members are in order of their ids.
    """
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    examples, pooled = 0.0, PooledScores()
    for member in members:
        if member.status is not MemberStatus.REPORTED:
            continue
        figures = dict(member.metrics)
        bound = float(min(max(member.declared_weight, 1), max_weight))
        held_out = min(figures.pop(EVALUATION_WEIGHT, 0.0), bound)
        trained = min(float(member.reported_weight), bound)
        examples += held_out
        pooled.add(member.scores, bound)
        for name, value in figures.items():
            weight = held_out if name.startswith(EVALUATION) else trained
            if weight > 0:
                found[name].append((weight, value))
    means = {name: _mean(found[name]) for name in sorted(_commonest(found, EVALUATION) + _commonest(found, TRAINING))}
    finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    finite = {name: mean for name, mean in finite.items() if name not in pooled} | pooled.areas()
    return finite | ({EVALUATION_WEIGHT: examples} if examples else {})


def _commonest(found: Mapping[str, Sequence[tuple[float, float]]], prefix: str) -> list[str]:
    names = [name for name in found if name.startswith(prefix)]
    return sorted(names, key=lambda name: (-len(found[name]), name))[:MAX_MEANS]


def _mean(figures: Sequence[tuple[float, float]]) -> float:
    """The mean of (weight, value); each value is first scaled by its share, so that large values do not overflow."""
    total = math.fsum(weight for weight, _ in figures)
    try:
        return math.fsum(value * (weight / total) for weight, value in figures)
    except OverflowError:  # shares sum to 1 only up to rounding
        return math.inf


def claimed_seconds(report: transfer_pb2.ReportRequest) -> tuple[tuple[str, float], ...]:
    """Reported seconds of each step; steps with missing or impossible values are left out."""
    said = {
        "download": report.download_seconds,
        "evaluate": report.evaluate_seconds,
        "fit": report.train_seconds,
        "upload": report.upload_seconds,
    }
    return tuple((name, seconds) for name, seconds in said.items() if 0 < seconds <= MAX_CLAIM_S)


def round_record(run: str, state: RoundState, metrics: Mapping[str, float]) -> rounds.Round:
    """The row of an attempt."""
    return rounds.Round(
        run_id=run,
        round=state.key.round,
        attempt=state.key.attempt,
        kind=state.kind.value,
        phase=state.phase.value,
        created_at=state.created_at,
        reason=state.reason,
        sampler=state.sampler,
        seed=state.seed,
        eligible=state.eligible,
        cohort=len(state.roster),
        reported=state.roster.reported,
        total_weight=sum(m.reported_weight for m in state.roster if m.status is MemberStatus.REPORTED),
        opened_at=state.opened_at or None,
        deadline_at=state.deadline_at or None,
        closed_at=state.ended_at or None,
        model=state.digest or None,
        version=state.version,
        metrics=tuple(sorted(metrics.items())),
        durations_s=tuple(phase_seconds(state).items()),
    )


def member_record(run: str, state: RoundState, member: Member, report: reports.Report | None) -> rounds.Member:
    """The row of a member of an attempt; ``report`` is its acknowledged report."""
    return rounds.Member(
        run_id=run,
        round=state.key.round,
        attempt=state.key.attempt,
        participant=member.participant,
        status=member.status.value,
        detail=member.detail,
        declared_weight=member.declared_weight,
        weight=member.reported_weight,
        payload_bytes=report.payload_bytes if report else 0,
        invited_at=state.opened_at or None,
        accepted_at=member.accepted_at or None,
        upload_at=report.upload_at if report else None,
        reported_at=member.at if member.status is MemberStatus.REPORTED else None,
        folded_at=report.folded_at if report else None,
        ended_at=member.at or None,
        claimed_s=report.claimed_s if report else (),
        metrics=member.metrics,
    )
