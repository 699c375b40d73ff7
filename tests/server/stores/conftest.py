import pytest
from sqlalchemy import Connection

from atoll.server.stores import Store, participants, runs
from tests.server.stores.samples import ALICE, BOB, participant, run


@pytest.fixture
def with_run(store: Store) -> Store:
    """A store with one run and two participants."""

    def fill(connection: Connection) -> None:
        runs.add(connection, run())
        for name in (ALICE, BOB):
            participants.add(connection, participant(name))

    store.writer.submit(fill).result()
    return store
