import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from atoll.server.identity import ParticipantKind, mint
from atoll.server.stores import Reader, Store, StoreBusyError, StoreClosedError, StoreUnavailableError, tokens
from atoll.server.stores.dialects import reader_engine, sqlite_url
from tests.patience import WAIT_S


async def test_a_read_is_one_snapshot_and_does_not_wait_for_the_writer(store: Store) -> None:
    inside, go = threading.Event(), threading.Event()

    def twice(connection: Connection) -> tuple[int, int]:
        before = len(tokens.listed(connection, project=None))
        inside.set()
        assert go.wait(WAIT_S)
        return before, len(tokens.listed(connection, project=None))

    reading = store.reader.submit(twice)
    assert inside.wait(WAIT_S)
    record = mint("acme", ParticipantKind.EDGE, created_by="op", now=1.0).record
    await store.writer.run(tokens.add, record)
    go.set()
    assert reading.result(30) == (0, 0)
    assert await store.reader.run(tokens.listed, project=None) == (record,)


async def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreUnavailableError, match=r"readonly|read-only"):
        await store.reader.run(lambda c: c.execute(text("DELETE FROM tokens")))


async def test_what_the_function_raises_comes_back(store: Store) -> None:
    def fail(_: Connection) -> None:
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        await store.reader.run(fail)


def test_the_queue_is_bounded(tmp_path: Path) -> None:
    reader = Reader(reader_engine(sqlite_url(tmp_path / "x.sqlite3"), connections=1), threads=1, queue_limit=2)
    go = threading.Event()
    waiting = [reader.submit(lambda _: go.wait(WAIT_S)) for _ in range(2)]
    with pytest.raises(StoreBusyError, match="2 reads"):
        reader.submit(lambda _: None)
    go.set()
    assert all(future.result() for future in waiting)
    assert reader.submit(lambda _: 7).result() == 7
    reader.close()
    with pytest.raises(StoreClosedError):
        reader.submit(lambda _: None)
