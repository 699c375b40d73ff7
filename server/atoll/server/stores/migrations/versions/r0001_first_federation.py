"""The first federation: identity, runs with their event logs, rounds, reports, models, charges, history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    _create_certificates()
    _create_participants()
    _create_runs()
    _create_tokens()
    _create_charges()
    _create_events()
    _create_snapshots()
    _create_models()
    _create_participant_history()
    _create_reports()
    _create_rounds()
    _create_members()


def _create_certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("serial", sa.String(length=64), nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("not_after", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name=op.f("pk_certificates")),
    )
    op.create_index(op.f("ix_certificates_not_after"), "certificates", ["not_after"], unique=False)
    op.create_index(op.f("ix_certificates_role_subject"), "certificates", ["role", "subject"], unique=False)


def _create_participants() -> None:
    op.create_table(
        "participants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organisation", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("token_id", sa.String(length=64), nullable=True),
        sa.Column("last_seen_at", sa.Double(), nullable=True),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_participants")),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_toml", sa.Text(), nullable=False),
        sa.Column("layout", sa.LargeBinary(), nullable=False),
        sa.Column("initial_model", sa.String(length=64), nullable=False),
        sa.Column("current_model", sa.String(length=64), nullable=False),
        sa.Column("best_model", sa.String(length=64), nullable=True),
        sa.Column("best_value", sa.Double(), nullable=True),
        sa.Column("keep_models", sa.Integer(), nullable=True),
        sa.Column("rounds_total", sa.Integer(), nullable=False),
        sa.Column("rounds_released", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_created_at"), "runs", ["created_at"], unique=False)


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("organisation", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("used_by", sa.String(length=64), nullable=True),
        sa.Column("used_key", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )


def _create_charges() -> None:
    op.create_table(
        "charges",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("mechanism", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("charged_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_charges_run_id")),
        sa.PrimaryKeyConstraint("run_id", "round", name=op.f("pk_charges")),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_events")),
    )


def _create_snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_snapshots_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_snapshots")),
    )


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("blob", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("optimiser_blobs", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_models_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_models")),
        sa.UniqueConstraint("run_id", "round", name=op.f("uq_models_run_id_round")),
    )
    op.create_index(op.f("ix_models_blob"), "models", ["blob"], unique=False)


def _create_participant_history() -> None:
    op.create_table(
        "participant_history",
        sa.Column("participant", sa.String(length=64), nullable=False),
        sa.Column("online_s", sa.Text(), nullable=False),
        sa.Column("report_s", sa.Text(), nullable=False),
        sa.Column("times_selected", sa.Integer(), nullable=False),
        sa.Column("times_reported", sa.Integer(), nullable=False),
        sa.Column("last_selected_at", sa.Double(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["participant"], ["participants.id"], name=op.f("fk_participant_history_participant")),
        sa.PrimaryKeyConstraint("participant", name=op.f("pk_participant_history")),
    )


def _create_reports() -> None:
    op.create_table(
        "reports",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("participant", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("upload_id", sa.String(length=64), nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("norm", sa.Double(), nullable=False),
        sa.Column("upload_at", sa.Double(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("folded_at", sa.Double(), nullable=True),
        sa.Column("claimed_s", sa.Text(), nullable=False),
        sa.Column("disposition", sa.String(length=16), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["participant"], ["participants.id"], name=op.f("fk_reports_participant")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_reports_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round", "attempt", "participant", name=op.f("pk_reports")),
    )


def _create_rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("eligible", sa.Integer(), nullable=False),
        sa.Column("cohort", sa.Integer(), nullable=False),
        sa.Column("reported", sa.Integer(), nullable=False),
        sa.Column("total_weight", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=True),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("model", sa.String(length=64), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("durations_s", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rounds_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round", "attempt", name=op.f("pk_rounds")),
    )


def _create_members() -> None:
    op.create_table(
        "members",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("participant", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("declared_weight", sa.BigInteger(), nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("invited_at", sa.Double(), nullable=True),
        sa.Column("accepted_at", sa.Double(), nullable=True),
        sa.Column("upload_at", sa.Double(), nullable=True),
        sa.Column("reported_at", sa.Double(), nullable=True),
        sa.Column("folded_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("claimed_s", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["participant"], ["participants.id"], name=op.f("fk_members_participant")),
        sa.ForeignKeyConstraint(
            ["run_id", "round", "attempt"],
            ["rounds.run_id", "rounds.round", "rounds.attempt"],
            name=op.f("fk_members_run_id_round_attempt"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "round", "attempt", "participant", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_participant_run_id"), "members", ["participant", "run_id"], unique=False)
