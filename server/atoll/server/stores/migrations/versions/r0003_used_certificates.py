"""Records whether a certificate has been used: a certificate older than a used one is not renewed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; certificates in use get their time when they are next seen."""
    with op.batch_alter_table("certificates") as batch:
        batch.add_column(sa.Column("first_used_at", sa.Double(), nullable=True))
