"""Rounds and members as they are kept for ``atoll run show``: from the engine's values to the stores' rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from atoll.server.rounds import Member, MemberStatus, RoundState
from atoll.server.stores import rounds

EVALUATION = "eval/"
EVALUATION_WEIGHT = "eval/examples"
TRAINING = "train/"


def report_metrics(
    training: Mapping[str, float], evaluation: Mapping[str, float], evaluation_weight: int
) -> tuple[tuple[str, float], ...]:
    """A report's figures under one roof: ``train/...`` and ``eval/...``, the latter with its number of examples."""
    found = {TRAINING + name: value for name, value in training.items()}
    found.update({EVALUATION + name: value for name, value in evaluation.items()})
    if evaluation:
        found[EVALUATION_WEIGHT] = float(evaluation_weight)
    return tuple(sorted(found.items()))


def metrics_of(members: Iterable[Member]) -> dict[str, float]:
    """Weighted means over the members that reported: training figures by their weight, evaluations by their examples.

    ``eval/examples`` is the sum. Deterministic: members come in order of their ids.
    """
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    examples = 0.0
    for member in members:
        if member.status is not MemberStatus.REPORTED:
            continue
        found = dict(member.metrics)
        held_out = found.pop(EVALUATION_WEIGHT, 0.0)
        examples += held_out
        for name, value in found.items():
            weight = held_out if name.startswith(EVALUATION) else float(member.reported_weight)
            sums[name] += weight * value
            weights[name] += weight
    means = {name: sums[name] / weights[name] for name in sorted(sums) if weights[name]}
    return means | ({EVALUATION_WEIGHT: examples} if examples else {})


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
