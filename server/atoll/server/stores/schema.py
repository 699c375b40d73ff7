"""The tables. All times are epoch seconds UTC; all digests are lower-case hex; ids as in ``identity.names``.

Invariants of the tables:

- ``events`` is a run's durable log: replaying it in order of ``seq`` (0, 1, 2, ... no gap) gives the run's state.
  Events before the older of a run's ``snapshots`` may have been removed.
- ``reports`` has at most one row per participant and attempt of a round: a participant counts at most once.
- ``charges`` has at most one row per round of a run: no sum is charged, or released, twice. A population's charges are
  numbered 0, 1, 2, ... without a gap and chained by their digests; they outlive their run.
- ``populations`` are never removed. ``noise_states`` has one row per private run, whose secret is replaced in the
  transaction that charges.
- A ``checksum`` detects changes on disk that could change a sum: to an event, a snapshot, the submitted fields of a
  run, or the names of its model and optimiser state. Blobs and updates are named by their digests.
- ``audit`` is one hash chain of the operators' actions, numbered without a gap; only its oldest entries are removed.
- Each row of ``tokens``, ``participants`` and ``runs`` belongs to one project permanently, and a population to the
  project in its name (``stores.projects``). ``default`` has no row in ``projects`` until it gets a quota.
- ``models`` has the released models; each row is written in the transaction that charges for it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from atoll.server.identity import DEFAULT_PROJECT, OperatorRole, ParticipantKind, Role
from atoll.server.stores.columns import EnumText, NamedNumbersText, NamedTextsText, NumbersText

_DIGEST = String(64)
_NAME = String(64)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _NAME, primary_key=True),
    Column("secret_hash", _DIGEST, nullable=False),
    Column("organisation", _NAME, nullable=False),
    Column("kind", EnumText(ParticipantKind), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("used_at", Double),
    Column("used_by", _NAME),
    Column("used_key", _DIGEST),
    Column("hosts", Text, nullable=False, server_default=""),
    Column("through", _NAME, nullable=False, server_default=""),
    Column("project", _NAME, nullable=False, server_default=DEFAULT_PROJECT),
)

participants = Table(
    "participants",
    metadata,
    Column("id", _NAME, primary_key=True),
    Column("organisation", _NAME, nullable=False),
    Column("kind", EnumText(ParticipantKind), nullable=False),
    Column("enrolled_at", Double, nullable=False),
    Column("token_id", _NAME),
    Column("last_seen_at", Double),
    Column("examples", BigInteger, nullable=False),
    Column("labels", NamedTextsText, nullable=False),
    Column("revoked_at", Double),
    Column("revoked_reason", Text, nullable=False),
    Column("hosts", Text, nullable=False, server_default=""),
    Column("through", _NAME, nullable=False, server_default=""),
    Column("project", _NAME, nullable=False, server_default=DEFAULT_PROJECT),
    Index(None, "project", "id"),
)

certificates = Table(
    "certificates",
    metadata,
    Column("fingerprint", _DIGEST, primary_key=True),
    Column("role", EnumText(Role), nullable=False),
    Column("subject", _NAME, nullable=False),
    Column("serial", _NAME, nullable=False),
    Column("issued_at", Double, nullable=False),
    Column("not_after", Double, nullable=False),
    Column("first_used_at", Double),
    Column("revoked_at", Double),
    Column("revoked_reason", Text, nullable=False),
    Index(None, "role", "subject"),
    Index(None, "not_after"),
)

operators = Table(
    "operators",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("role", EnumText(OperatorRole), nullable=False),
    Column("granted_by", _NAME, nullable=False),
    Column("granted_at", Double, nullable=False),
)

projects = Table(
    "projects",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("created_by", _NAME, nullable=False),
    Column("closed_at", Double),
    Column("max_runs", Integer),
    Column("max_participants", Integer),
    Column("max_model_bytes", BigInteger),
)

project_roles = Table(
    "project_roles",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("project", _NAME, primary_key=True),
    Column("role", EnumText(OperatorRole), nullable=False),
    Column("organisation", _NAME, nullable=False),
    Column("granted_by", _NAME, nullable=False),
    Column("granted_at", Double, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", _NAME, primary_key=True),
    Column("name", Text, nullable=False),
    Column("job_toml", Text, nullable=False),
    Column("layout", LargeBinary, nullable=False),
    Column("initial_model", _DIGEST, nullable=False),
    Column("current_model", _DIGEST, nullable=False),
    Column("best_model", _DIGEST),
    Column("best_value", Double),
    Column("keep_models", Integer),
    Column("seed", BigInteger),
    Column("rounds_total", Integer, nullable=False),
    Column("rounds_released", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("submitted_by", _NAME, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("extended_after", NumbersText),
    Column("checksum", String(32), nullable=False),
    Column("project", _NAME, nullable=False, server_default=DEFAULT_PROJECT),
    Index(None, "created_at"),
    Index(None, "project", "created_at"),
)

events = Table(
    "events",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", _NAME, nullable=False),
    Column("body", Text, nullable=False),
    Column("checksum", String(32), nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("checksum", String(32), nullable=False),
)

rounds = Table(
    "rounds",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("sampler", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("eligible", Integer, nullable=False),
    Column("cohort", Integer, nullable=False),
    Column("reported", Integer, nullable=False),
    Column("total_weight", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("opened_at", Double),
    Column("deadline_at", Double),
    Column("closed_at", Double),
    Column("model", _DIGEST),
    Column("version", Integer),
    Column("metrics", NamedNumbersText, nullable=False),
    Column("durations_s", NamedNumbersText, nullable=False),
)

members = Table(
    "members",
    metadata,
    Column("run_id", _NAME, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("participant", _NAME, ForeignKey("participants.id"), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("declared_weight", BigInteger, nullable=False),
    Column("weight", BigInteger, nullable=False),
    Column("payload_bytes", BigInteger, nullable=False),
    Column("invited_at", Double),
    Column("accepted_at", Double),
    Column("upload_at", Double),
    Column("reported_at", Double),
    Column("folded_at", Double),
    Column("ended_at", Double),
    Column("claimed_s", NamedNumbersText, nullable=False),
    Column("metrics", NamedNumbersText, nullable=False),
    ForeignKeyConstraint(
        ["run_id", "round", "attempt"], ["rounds.run_id", "rounds.round", "rounds.attempt"], ondelete="CASCADE"
    ),
    Index(None, "participant", "run_id"),
)

reports = Table(
    "reports",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("participant", _NAME, ForeignKey("participants.id"), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("upload_id", _NAME, nullable=False),
    Column("weight", BigInteger, nullable=False),
    Column("node", _NAME, nullable=False),
    Column("payload_bytes", BigInteger, nullable=False),
    Column("norm", Double, nullable=False),
    Column("upload_at", Double),
    Column("received_at", Double, nullable=False),
    Column("folded_at", Double),
    Column("claimed_s", NamedNumbersText, nullable=False),
    Column("disposition", String(16), nullable=False),
    Column("counted", Boolean, nullable=False),
    Column("metrics", NamedNumbersText, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("round", Integer),
    Column("blob", _DIGEST, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("optimiser_blobs", NamedTextsText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("checksum", String(32), nullable=False),
    UniqueConstraint("run_id", "round"),
    Index(None, "blob"),
)

charges = Table(
    "charges",
    metadata,
    Column("run_id", _NAME, primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("mechanism", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Column("charged_at", Double, nullable=False),
    Column("population", _NAME, ForeignKey("populations.name")),
    Column("seq", BigInteger),
    Column("previous", _DIGEST),
    Column("digest", _DIGEST),
    UniqueConstraint("population", "seq"),
)

populations = Table(
    "populations",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("adjacency", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("charges", BigInteger, nullable=False),
    Column("head", _DIGEST, nullable=False),
    Column("epsilon", Double),
    Column("delta", Double),
    Column("limited_by", _NAME, nullable=False),
    Column("limited_at", Double),
    Column("checksum", String(32), nullable=False),
)

noise_states = Table(
    "noise_states",
    metadata,
    Column("run_id", _NAME, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("checksum", String(32), nullable=False),
)

history = Table(
    "participant_history",
    metadata,
    Column("participant", _NAME, ForeignKey("participants.id"), primary_key=True),
    Column("online_s", NumbersText, nullable=False),
    Column("report_s", NumbersText, nullable=False),
    Column("times_selected", Integer, nullable=False),
    Column("times_reported", Integer, nullable=False),
    Column("last_selected_at", Double),
    Column("updated_at", Double, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("operator", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("address", _NAME, nullable=False),
    Column("action", _NAME, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("code", _NAME, nullable=False),
    Column("previous", _DIGEST, nullable=False),
    Column("digest", _DIGEST, nullable=False),
    Column("project", _NAME, nullable=False, server_default=""),
    Index(None, "at"),
    Index(None, "operator"),
    Index(None, "subject"),
    Index(None, "project"),
)
