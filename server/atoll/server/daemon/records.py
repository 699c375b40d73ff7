"""Rounds and members as they are kept for ``atoll run show``: from the engine's values to the stores' rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from atoll.server.rounds import Member, MemberStatus, RoundState
from atoll.server.stores import rounds

EVALUATION = "eval/"
EVALUATION_WEIGHT = "eval/examples"
TRAINING = "train/"
MAX_MEANS = 64
"""Names in a round's means, of each kind: as many as one report may have."""


def report_metrics(
    training: Mapping[str, float], evaluation: Mapping[str, float], evaluation_weight: int
) -> tuple[tuple[str, float], ...]:
    """A report's figures under one roof: ``train/...`` and ``eval/...``, the latter with its number of examples."""
    found = {TRAINING + name: value for name, value in training.items()}
    found.update({EVALUATION + name: value for name, value in evaluation.items()})
    if evaluation:
        found[EVALUATION_WEIGHT] = float(evaluation_weight)
    return tuple(sorted(found.items()))


def metrics_of(members: Iterable[Member], max_weight: int) -> dict[str, float]:
    """Weighted means over the members that reported: training figures by their weight, evaluations by their examples.

    ``eval/examples`` is the sum of the latter. Whatever a member reports, it counts for at most what it declared at
    check-in, and at most ``max_weight`` (``RunPolicy.max_weight``); at least 1 for a member that declared nothing. Of
    each kind at most ``MAX_MEANS`` names are kept: those that most members reported, then by name. A mean that is not
    finite is left out. Deterministic: members come in order of their ids.
    """
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    examples = 0.0
    for member in members:
        if member.status is not MemberStatus.REPORTED:
            continue
        figures = dict(member.metrics)
        bound = float(min(max(member.declared_weight, 1), max_weight))
        held_out = min(figures.pop(EVALUATION_WEIGHT, 0.0), bound)
        trained = min(float(member.reported_weight), bound)
        examples += held_out
        for name, value in figures.items():
            weight = held_out if name.startswith(EVALUATION) else trained
            if weight > 0:
                found[name].append((weight, value))
    means = {name: _mean(found[name]) for name in sorted(_commonest(found, EVALUATION) + _commonest(found, TRAINING))}
    finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    return finite | ({EVALUATION_WEIGHT: examples} if examples else {})


def _commonest(found: Mapping[str, Sequence[tuple[float, float]]], prefix: str) -> list[str]:
    names = [name for name in found if name.startswith(prefix)]
    return sorted(names, key=lambda name: (-len(found[name]), name))[:MAX_MEANS]


def _mean(figures: Sequence[tuple[float, float]]) -> float:
    """The mean of (weight, value); each is scaled by its share first, so that large values do not overflow."""
    total = math.fsum(weight for weight, _ in figures)
    try:
        return math.fsum(value * (weight / total) for weight, value in figures)
    except OverflowError:  # shares sum to 1 only up to rounding
        return math.inf


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
        metrics=tuple(sorted(metrics.items())),
    )


def member_record(run: str, state: RoundState, member: Member, payload_bytes: int) -> rounds.Member:
    """The row of a member of an attempt."""
    return rounds.Member(
        run_id=run,
        round=state.key.round,
        attempt=state.key.attempt,
        participant=member.participant,
        status=member.status.value,
        detail=member.detail,
        declared_weight=member.declared_weight,
        weight=member.reported_weight,
        payload_bytes=payload_bytes,
        invited_at=state.opened_at or None,
        reported_at=member.at if member.status is MemberStatus.REPORTED else None,
        metrics=member.metrics,
    )
