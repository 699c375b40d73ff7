"""Projects: runs, participants and join tokens belong to one; operators may have roles in single ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add tables and columns; all existing rows belong to the project ``default``."""
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("max_runs", sa.Integer(), nullable=True),
        sa.Column("max_participants", sa.Integer(), nullable=True),
        sa.Column("max_model_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "project_roles",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("organisation", sa.String(length=64), nullable=False),
        sa.Column("granted_by", sa.String(length=64), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "project", name=op.f("pk_project_roles")),
    )
    for table, default in (("tokens", "default"), ("participants", "default"), ("runs", "default"), ("audit", "")):
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("project", sa.String(length=64), nullable=False, server_default=default))
    op.create_index(op.f("ix_participants_project_id"), "participants", ["project", "id"], unique=False)
    op.create_index(op.f("ix_runs_project_created_at"), "runs", ["project", "created_at"], unique=False)
    op.create_index(op.f("ix_audit_project"), "audit", ["project"], unique=False)
