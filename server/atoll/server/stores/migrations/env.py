"""Run by Alembic: applies revisions on the connection and in the transaction that ``schema_version`` passes."""

from alembic import context

from atoll.server.stores.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
