"""Aggregators: the host names of their certificates, and the aggregator through which a participant may connect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; existing participants are neither aggregators nor connected through one."""
    for table in ("tokens", "participants"):
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("hosts", sa.Text(), nullable=False, server_default=""))
            batch.add_column(sa.Column("through", sa.String(64), nullable=False, server_default=""))
