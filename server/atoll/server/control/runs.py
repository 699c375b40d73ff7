"""Runs, rounds and their members as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ENDED = ("finished", "failed", "cancelled")
COUNTED = "reported"
PENDING = ("invited", "training")
PHASES = ("draw", "prepare", "collect", "aggregate", "charge", "publish")
"""The phases of an attempt at a round, in order."""


@dataclass(frozen=True)
class RunSummary:
    """A run.

    Attributes:
        status: running, paused, finished, failed or cancelled.
        reason: why it failed, was paused or cancelled; empty otherwise.
        model_blob: name of the newest released model's blob.
        extended_after: for each extension, the number of models released before it.
        project: its project; empty from a server version without projects.
    """

    run: str
    name: str
    status: str
    reason: str
    rounds_total: int
    rounds_released: int
    created_at: float
    finished_at: float | None
    model_blob: str
    extended_after: tuple[int, ...] = ()
    project: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.status in ENDED

    @property
    def planned(self) -> str:
        """The number of planned rounds and the extensions, in words."""
        return f"of {self.rounds_total}, {self.extension}" if self.extension else f"of {self.rounds_total}"

    @property
    def extension(self) -> str:
        """After how many rounds the run was extended, in words; empty if it was not."""
        if not self.extended_after:
            return ""
        *earlier, last = map(str, self.extended_after)
        after = f"{', '.join(earlier)} and {last}" if earlier else last
        return f"extended after {after} round{'' if after == '1' else 's'}"


@dataclass(frozen=True)
class MemberSummary:
    """One participant's part in one attempt at a round.

    Attributes:
        status: invited or training; reported; or why it did not count: declined, failed, silent, timed_out, late,
            rejected, over_selected, stopped.
        detail: the reason in words.
        weight: examples that it reported.
        report_s: seconds from invitation to report; None if there was none. Likewise ``accept_s`` (it accepted the
            task), ``upload_s`` (the first byte of its update arrived), ``fold_s`` (its update was in the sum) and
            ``end_s`` (its outcome was decided).
        claimed_s: seconds that it reported for download, evaluate, fit and upload, by its own clock.
        payload_bytes: size of its update.
        labels: its current labels; empty in a live round.
    """

    participant: str
    organisation: str
    status: str
    detail: str
    weight: int
    report_s: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    accept_s: float | None = None
    upload_s: float | None = None
    fold_s: float | None = None
    end_s: float | None = None
    claimed_s: Mapping[str, float] = field(default_factory=dict)
    payload_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> bool:
        """Whether the member's report is in the round's result."""
        return self.status == COUNTED

    @property
    def pending(self) -> bool:
        """Whether the member may still report."""
        return self.status in PENDING


@dataclass(frozen=True)
class RoundSummary:
    """One attempt at one round. Rounds and attempts count from 0 here and in JSON, from 1 in tables and reports.

    Attributes:
        kind: train or evaluate.
        phase: created, sampled, open, closing, aggregated, charged, released or abandoned.
        reason: why it closed or was abandoned.
        wanted: number of reports at which it closes.
        remaining_s: seconds to the deadline at the time of the answer; None without one.
        metrics: weighted means over the reports (``train/...``; ``eval/...`` on the participants' held-out data) and
            ``server/...`` from the server's evaluator.
        version: train rounds released before it, which is the number of the model that it handed out.
        created_at: when it began to wait for its cohort.
        phases_s: seconds spent in each finished phase of ``PHASES``.
        fragment: index of the one of the model's ``fragments`` that it updates, from 0; None for the whole model.
    """

    round: int
    attempt: int
    kind: str
    phase: str
    reason: str
    cohort: int
    reported: int
    quorum: int
    wanted: int
    total_weight: int
    opened_at: float | None
    closed_at: float | None
    remaining_s: float | None
    metrics: Mapping[str, float]
    members: tuple[MemberSummary, ...] = ()
    version: int = 0
    created_at: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    fragment: int | None = None
    fragments: int = 1

    @property
    def released(self) -> bool:
        """Whether the attempt released a result."""
        return self.phase == "released"

    @property
    def duration_s(self) -> float | None:
        """Seconds from opening to closing; None until it is closed."""
        if self.opened_at is None or self.closed_at is None:
            return None
        return self.closed_at - self.opened_at


@dataclass(frozen=True)
class BestModel:
    """The best model of a run by one metric.

    Attributes:
        metric: ``eval/...`` or ``server/...``.
        mode: max or min, whichever is better.
        value: the metric of that model.
        round: train rounds up to that model; 0 for the initial one.
        model_blob: name of its blob, which is kept; empty if a metric other than the job's decided.
    """

    metric: str
    mode: str
    value: float
    round: int
    model_blob: str = ""


@dataclass(frozen=True)
class RunDetail:
    """A run with its rounds, oldest first, its job file, and the seed of its participants.

    ``seed`` is the job's or was drawn by the server; None for a run of an earlier version. ``best`` is the best model
    by the job's metric; None if the job has none, and before the first model is measured.
    """

    run: RunSummary
    rounds: tuple[RoundSummary, ...]
    connected: int
    job_toml: str
    seed: int | None = None
    best: BestModel | None = None


@dataclass(frozen=True)
class Progress:
    """One change of a run: its state, and the round that changed (None before the first)."""

    run: RunSummary
    round: RoundSummary | None
    connected: int
