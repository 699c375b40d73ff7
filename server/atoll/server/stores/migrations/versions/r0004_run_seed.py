"""The seed of a run, from which the seeds of its participants' tasks are derived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; runs that have begun get no seed, and their participants continue to draw their own."""
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("seed", sa.BigInteger(), nullable=True))
