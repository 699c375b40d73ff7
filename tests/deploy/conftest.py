"""Fixtures of the tests of deploy/."""

from tests.postgresql import database_server, postgresql_url

__all__ = ["database_server", "postgresql_url"]
