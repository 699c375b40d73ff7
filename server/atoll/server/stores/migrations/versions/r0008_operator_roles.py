"""Roles of operators, who previously all had the same rights."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; every existing operator becomes an administrator, which preserves its rights."""
    op.create_table(
        "operators",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("granted_by", sa.String(length=64), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_operators")),
    )
    op.execute(
        "INSERT INTO operators (name, role, granted_by, granted_at) "
        "SELECT subject, 'administrator', 'upgrade', min(issued_at) "
        "FROM certificates WHERE role = 'operator' GROUP BY subject"
    )
