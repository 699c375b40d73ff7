"""The seed of a run's participants, from which the seeds of their tasks follow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; runs that have begun get none, and their participants go on drawing seeds of their own."""
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("seed", sa.BigInteger(), nullable=True))
