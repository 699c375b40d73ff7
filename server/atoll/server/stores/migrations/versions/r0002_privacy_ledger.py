"""The privacy ledger: populations, charges chained to them that outlive their run, states of the noise."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; earlier charges belong to no population."""
    op.create_table(
        "populations",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("adjacency", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.String(length=64), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("delta", sa.Double(), nullable=True),
        sa.Column("limited_by", sa.String(length=64), nullable=False),
        sa.Column("limited_at", sa.Double(), nullable=True),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_populations")),
    )
    op.create_table(
        "noise_states",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("checksum", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_noise_states_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_noise_states")),
    )
    with op.batch_alter_table("charges") as batch:
        batch.drop_constraint(op.f("fk_charges_run_id"), type_="foreignkey")
        batch.add_column(sa.Column("population", sa.String(length=64), nullable=True))
        batch.add_column(sa.Column("seq", sa.BigInteger(), nullable=True))
        batch.add_column(sa.Column("previous", sa.String(length=64), nullable=True))
        batch.add_column(sa.Column("digest", sa.String(length=64), nullable=True))
        batch.create_foreign_key(op.f("fk_charges_population"), "populations", ["population"], ["name"])
        batch.create_unique_constraint(op.f("uq_charges_population_seq"), ["population", "seq"])
