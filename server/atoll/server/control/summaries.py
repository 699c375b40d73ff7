"""Runs, rounds, members, tokens, participants and the server as frozen values: the control API's read model.

Each has the fields of the message of the same name (``messages.value_of``). ``--json`` prints them (``as_json``),
tables and reports are made from them, and docs/command-line.md documents the fields. Times are seconds since the epoch,
UTC. None means not yet or unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

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
        """Whether its report is in the round's result."""
        return self.status == COUNTED

    @property
    def pending(self) -> bool:
        """Whether it may still report."""
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
        """Whether it released a result."""
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


@dataclass(frozen=True)
class TokenSummary:
    """A join token, without its secret.

    Attributes:
        used_by: the participant that spent it, or empty.
        created_by: the operator who made it.
    """

    token_id: str
    organisation: str
    kind: str
    created_at: float
    expires_at: float
    used_by: str
    created_by: str
    project: str = ""


@dataclass(frozen=True)
class ProjectRoleSummary:
    """A role in one project; with an ``organisation`` only for its participants and join tokens."""

    project: str
    role: str
    organisation: str


@dataclass(frozen=True)
class ProjectQuota:
    """Quotas of a project; None for unlimited.

    Attributes:
        runs: maximum number of runs that have not ended.
        participants: maximum number of unrevoked participants, including those that unused join tokens may admit.
        model_bytes: maximum bytes of models and optimiser states.
    """

    runs: int | None = None
    participants: int | None = None
    model_bytes: int | None = None


@dataclass(frozen=True)
class ProjectSummary:
    """A project, its quotas and their current use, as far as the caller may see them.

    ``closed_at`` is None while it is open. For a caller whose role is for one organisation, ``runs``,
    ``model_bytes`` and all of ``quota`` are None, and the participants are of that organisation.
    """

    project: str
    created_at: float
    created_by: str
    closed_at: float | None
    quota: ProjectQuota
    runs: int | None
    participants: int
    connected: int
    model_bytes: int | None


@dataclass(frozen=True)
class ClosedProject:
    """A closed project, and the number of its unused join tokens that became void."""

    project: ProjectSummary
    voided_tokens: int


@dataclass(frozen=True)
class OperatorSummary:
    """An operator; ``certificates`` counts the valid ones, and ``revoked_at`` is None while there is one.

    ``role`` is its role in all projects, unspecified if it only has roles in single ``projects``.
    """

    name: str
    issued_at: float
    expires_at: float
    certificates: int
    revoked_at: float | None
    revoked_reason: str
    role: str
    projects: tuple[ProjectRoleSummary, ...] = ()


@dataclass(frozen=True)
class Myself:
    """The caller's identity as seen by the server.

    Attributes:
        name: its name in the audit log.
        role: viewer, operator, privacy_officer or administrator, in the project or in all; unspecified if it has none
            there.
        credential: how the caller proved its name.
        actions: the actions that the caller may perform in the project, or in all, as named in the audit log.
        project: the project of the calls; empty for all.
        projects: roles in single projects.
        server_role: in all projects and for the server as a whole; unspecified: in single projects only.
        server_actions: what it allows that is about the server as a whole.
    """

    name: str
    role: str
    credential: str
    actions: tuple[str, ...]
    project: str = ""
    projects: tuple[ProjectRoleSummary, ...] = ()
    server_role: str = "unspecified"
    server_actions: tuple[str, ...] = ()

    def may(self, action: str) -> bool:
        """Whether the caller may perform an action, such as ``run.cancel`` or ``storage.prune``."""
        return action in self.actions or action in self.server_actions


@dataclass(frozen=True)
class OperatorCertificate:
    """A new certificate for an operator's key, and the federation's authority certificate."""

    certificate_pem: bytes
    ca_certificate_pem: bytes
    expires_at: float


@dataclass(frozen=True)
class RevokedOperator:
    """A revoked operator, and the number of its unused join tokens that became void."""

    operator: OperatorSummary
    voided_tokens: int


@dataclass(frozen=True)
class NewTokens:
    """New join tokens, which are shown only once, because only hashes are stored."""

    tokens: tuple[str, ...] = field(repr=False)
    expires_at: float


@dataclass(frozen=True)
class ParticipantSummary:
    """An enrolled participant; ``kind`` is edge or silo, ``examples`` the weight that it declares."""

    participant: str
    organisation: str
    kind: str
    enrolled_at: float
    last_seen_at: float | None
    revoked_at: float | None
    connected: bool
    examples: int
    times_selected: int
    times_reported: int
    labels: Mapping[str, str]
    project: str = ""


@dataclass(frozen=True)
class ServerInfo:
    """The server: ``now`` is its clock when it answered."""

    version: str
    protocol: int
    now: float
    started_at: float
    connected: int
    workers: int
    disk_free_bytes: int
    evaluators: tuple[str, ...]
    disk_reserve_bytes: int = 0


@dataclass(frozen=True)
class LogLine:
    """A line of the server's log.

    Attributes:
        number: increases from line to line; starts over when the server starts.
        level: info, warning or error.
        run: its subject, like ``participant`` and ``operator``; each is empty if the line has none.
        code: the code of an error.
    """

    number: int
    logged_at: float
    level: str
    logger: str
    message: str
    run: str = ""
    participant: str = ""
    operator: str = ""
    code: str = ""


@dataclass(frozen=True)
class AuditEntry:
    """One action of an operator. Times are epoch seconds UTC.

    Attributes:
        seq: its place in the hash chain: 0, 1, 2, ... without a gap.
        at: when it ended.
        operator: the operator's name.
        credential: the operator's proof of identity.
        address: the caller's address; empty if unknown.
        action: the action, such as ``run.cancel``.
        subject: the subject, such as a run's id.
        detail: further values, such as a reason.
        outcome: done, refused, failed or interrupted.
        code: of the error.
        previous: the digest of the entry before.
        digest: SHA-256 over all other fields as JSON with sorted keys and no spaces, except an empty ``project``.
        project: the subject's project; empty for the whole server, or if ``default`` was the only project.
    """

    seq: int
    at: float
    operator: str
    credential: str
    address: str
    action: str
    subject: str
    detail: str
    outcome: str
    code: str
    previous: str
    digest: str
    project: str = ""


@dataclass(frozen=True)
class AuditChain:
    """The whole audit log: its first entry's number, the number of entries, the last one's digest, and the flaw."""

    first: int
    entries: int
    head: str
    flaw: str


@dataclass(frozen=True)
class PrunedStorage:
    """Items that were removed, or would be, of one ``kind`` and one run (empty: of no run)."""

    kind: str
    run: str
    count: int
    stored_bytes: int


def as_json(value: object) -> Json:
    """A value of this module, or lists and mappings of them, as plain JSON data: the dataclass fields are the keys.

    Non-finite numbers, which JSON lacks, are left out of mappings and are None elsewhere.
    """
    if _is_not_finite(value):
        return None
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if is_dataclass(value):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items() if not _is_not_finite(item)}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
