"""Columns for extended runs: where a run was extended, and the model that each round handed out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the numbers of earlier rounds determine their model, since no run had been extended."""
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("extended_after", sa.Text(), nullable=True))
    with op.batch_alter_table("rounds") as batch:
        batch.add_column(sa.Column("version", sa.Integer(), nullable=True))
