"""Metrics of runs, rounds, members and reports, counted from durable events."""

from __future__ import annotations

from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Histogram

from atoll.server.rounds import (
    Effect,
    Finish,
    MemberStatus,
    Phase,
    Receipt,
    RecordRound,
    RoundKind,
    RoundState,
    RunStatus,
    Verdict,
)
from atoll.server.rounds.roster import OUTSTANDING
from atoll.server.telemetry.durations import phase_seconds
from atoll.server.telemetry.observer import StoredEvents

ROUND_BUCKETS_S = (0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
PHASE_BUCKETS_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0, 86_400.0)
COMMIT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class RoundFigures:
    """Counts into its own registry. Labels only have values that the engine defines."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._runs = Counter("atoll_runs_ended", "Runs that ended, by how.", ["status"], registry=registry)
        self._rounds = Counter(
            "atoll_rounds",
            "Attempts at rounds that ended, by kind (train, evaluate) and outcome (released, abandoned).",
            ["kind", "outcome"],
            registry=registry,
        )
        self._whole = Histogram(
            "atoll_round_duration_seconds",
            "From the start of an attempt at a round to its end, waiting for participants included.",
            ["kind"],
            registry=registry,
            buckets=ROUND_BUCKETS_S,
        )
        self._phases = Histogram(
            "atoll_round_phase_duration_seconds",
            "Time that attempts spent in each phase: draw, prepare, collect, aggregate, charge, publish.",
            ["kind", "phase"],
            registry=registry,
            buckets=PHASE_BUCKETS_S,
        )
        self._members = Counter(
            "atoll_round_members",
            "Members of rounds that ended, by status; rounds with secret draws are left out.",
            ["status"],
            registry=registry,
        )
        self._report_times = Histogram(
            "atoll_report_duration_seconds",
            "Time from invitation to report, of members that counted; rounds with secret draws are left out.",
            registry=registry,
            buckets=ROUND_BUCKETS_S,
        )
        self._reports = Counter(
            "atoll_reports",
            "Answers to reports: counted, carried, late, rejected. Repeated reports are included, rounds with secret "
            "draws are not.",
            ["outcome"],
            registry=registry,
        )
        self._retries = Counter(
            "atoll_effect_retries",
            "Retries of steps of rounds because disk, database or a worker failed temporarily, by step.",
            ["effect"],
            registry=registry,
        )
        self._commits = Histogram(
            "atoll_commit_duration_seconds",
            "Duration of the database writer's transactions; each has many writes.",
            registry=registry,
            buckets=COMMIT_BUCKETS_S,
        )
        self._writes = Counter("atoll_writes", "Writes within those transactions.", registry=registry)
        self._failed_commits = Counter(
            "atoll_failed_commits", "Transactions that could not be made durable.", registry=registry
        )

        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Create all series at 0: alerts would miss the increase of one that appears with its first event."""
        for status in RunStatus:
            if status.ended:
                self._runs.labels(status.value)
        for kind in RoundKind:
            for phase in (Phase.RELEASED, Phase.ABANDONED):
                self._rounds.labels(kind.value, phase.value)
        for member_status in MemberStatus:
            if member_status not in OUTSTANDING:
                self._members.labels(member_status.value)
        for verdict in Verdict:
            self._reports.labels(verdict.value)

    def stored(self, stored: StoredEvents) -> None:
        """Count a run's durable events."""
        for played in stored.played:
            for effect in played.effects:
                self._count(effect, secret=stored.after.policy.secret_draw)

    def retried(self, effect: str) -> None:
        """Count a step that is retried."""
        self._retries.labels(effect).inc()

    def committed(self, writes: int, seconds: float, failed: bool) -> None:
        """Count a transaction of the database's writer."""
        self._commits.observe(seconds)
        self._writes.inc(writes)
        self._failed_commits.inc(failed)

    def _count(self, effect: Effect, *, secret: bool) -> None:
        match effect:
            case RecordRound():
                self._count_round(effect.round)
                if not secret:
                    self._count_members(effect.round)
            case Receipt() if not secret:
                self._reports.labels(effect.verdict.value).inc()
            case Finish():
                self._runs.labels(effect.status.value).inc()
            case _:
                pass

    def _count_round(self, ended: RoundState) -> None:
        kind = ended.kind.value
        self._rounds.labels(kind, ended.phase.value).inc()
        self._whole.labels(kind).observe(max(0.0, ended.ended_at - ended.created_at))
        for phase, seconds in phase_seconds(ended).items():
            self._phases.labels(kind, phase).observe(seconds)

    def _count_members(self, ended: RoundState) -> None:
        for status, count in Counts(member.status for member in ended.roster).items():
            self._members.labels(status.value).inc(count)
        for member in ended.roster:
            if member.status is MemberStatus.REPORTED:
                self._report_times.observe(max(0.0, member.at - ended.opened_at))
