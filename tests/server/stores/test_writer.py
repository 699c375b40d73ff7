import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from atoll.server.stores import (
    CommitError,
    LoggedEvent,
    RecordConflictError,
    Store,
    StoreBusyError,
    StoreClosedError,
    StoreFullError,
    Writer,
    event_log,
    runs,
)
from atoll.server.stores.dialects import sqlite_url, writer_engine
from tests.patience import WAIT_S
from tests.server.stores.samples import RUN


def _append(seq: int) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        event_log.append(connection, RUN, [LoggedEvent(seq, 0.0, "test", "{}")])
        return seq

    return work


def _seqs(store: Store) -> list[int]:
    return [item.seq for item in store.reader.submit(event_log.read, RUN).result()]


@contextmanager
def _held(writer: Writer) -> Iterator[None]:
    """Keep the writer busy, so that functions submitted meanwhile form one batch."""
    started, go = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        started.set()
        assert go.wait(WAIT_S)

    first = writer.submit(wait)
    assert started.wait(WAIT_S)
    try:
        yield
    finally:
        go.set()
    first.result()


def _count_commits(writer: Writer) -> list[None]:
    commits: list[None] = []
    event.listen(writer._engine, "commit", lambda _: commits.append(None))
    return commits


async def test_a_write_is_there_when_it_returns(with_run: Store) -> None:
    assert await with_run.writer.run(_append(0)) == 0
    assert [item.seq for item in await with_run.reader.run(event_log.read, RUN)] == [0]


def test_what_waits_shares_one_commit_and_keeps_its_order(with_run: Store) -> None:
    commits = _count_commits(with_run.writer)
    with _held(with_run.writer):
        futures = [with_run.writer.submit(_append(seq)) for seq in range(100)]
    assert [future.result() for future in futures] == list(range(100))
    assert _seqs(with_run) == list(range(100))
    assert len(commits) == 2


def test_a_failing_function_undoes_only_itself(with_run: Store) -> None:
    def half(connection: Connection) -> None:
        _append(1)(connection)
        raise LookupError("on purpose")

    with _held(with_run.writer):
        good = with_run.writer.submit(_append(0))
        bad = with_run.writer.submit(half)
        broken = with_run.writer.submit(lambda c: c.execute(text("SELECT nonsense FROM nowhere")))
        conflict = with_run.writer.submit(_append(0))
        after = with_run.writer.submit(_append(1))
    assert (good.result(), after.result()) == (0, 1)
    with pytest.raises(LookupError, match="on purpose"):
        bad.result()
    with pytest.raises(RecordConflictError, match="event 0 is already in the log"):
        conflict.result()
    assert broken.exception() is not None
    assert _seqs(with_run) == [0, 1]


def test_a_function_that_breaks_the_transaction_fails_the_batch_and_the_next_goes_on(with_run: Store) -> None:
    with _held(with_run.writer):
        before = with_run.writer.submit(_append(0))
        with_run.writer.submit(lambda c: c.exec_driver_sql("ROLLBACK")).add_done_callback(lambda _: None)
        after = with_run.writer.submit(_append(1))
    for future in (before, after):
        with pytest.raises(CommitError, match="not stored"):
            future.result()
    assert _seqs(with_run) == []
    assert with_run.writer.submit(_append(0)).result() == 0


def test_a_failing_commit_fails_everything_in_it(with_run: Store) -> None:
    with _held(with_run.writer):
        futures = [with_run.writer.submit(_append(seq)) for seq in range(3)]

        def refuse(_: Connection) -> None:
            event.remove(with_run.writer._engine, "commit", refuse)
            raise OSError("the disk is gone")

        with_run.writer.submit(lambda _: event.listen(with_run.writer._engine, "commit", refuse))
    for future in futures:
        with pytest.raises(CommitError, match="the disk is gone"):
            future.result()
    assert _seqs(with_run) == []
    assert with_run.writer.submit(_append(0)).result() == 0


def test_the_queue_is_bounded(tmp_path: Any) -> None:
    writer = Writer(writer_engine(sqlite_url(tmp_path / "x.sqlite3")), queue_limit=5)
    with _held(writer):
        waiting = [writer.submit(lambda _: 1) for _ in range(5)]
        with pytest.raises(StoreBusyError, match="5 writes are waiting") as refused:
            writer.submit(lambda _: 1)
        assert refused.value.detail.retry_after_s
    assert [future.result() for future in waiting] == [1] * 5
    writer.close()


def test_a_batch_is_bounded(tmp_path: Any) -> None:
    writer = Writer(writer_engine(sqlite_url(tmp_path / "x.sqlite3")), batch_limit=10)
    commits = _count_commits(writer)
    with _held(writer):
        futures = [writer.submit(lambda _: 1) for _ in range(35)]
    assert sum(future.result() for future in futures) == 35
    assert len(commits) == 1 + 4
    writer.close()


def test_close_finishes_what_waits_and_takes_no_more(with_run: Store) -> None:
    with _held(with_run.writer):
        futures = [with_run.writer.submit(_append(seq)) for seq in range(20)]
        closing = threading.Thread(target=with_run.writer.close)
        closing.start()
    closing.join(WAIT_S)
    assert [future.result(0) for future in futures] == list(range(20))
    with pytest.raises(StoreClosedError):
        with_run.writer.submit(_append(20))
    assert _seqs(with_run) == list(range(20))
    with_run.writer.close()


async def test_a_cancelled_write_that_has_not_begun_is_not_run(with_run: Store) -> None:
    with _held(with_run.writer):
        unwanted = asyncio.create_task(with_run.writer.run(_append(0)))
        await asyncio.sleep(0)
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
    assert await with_run.writer.run(_append(0)) == 0


def test_a_database_that_is_full_says_so_and_recovers(tmp_path: Any) -> None:
    store = Store.open(tmp_path)

    def grow(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE big (x TEXT)")
        connection.exec_driver_sql("INSERT INTO big VALUES (zeroblob(5000000))")

    store.writer.submit(lambda c: c.exec_driver_sql("PRAGMA max_page_count=100")).result()
    failure = store.writer.submit(grow).exception()
    assert isinstance(failure, StoreFullError)
    assert "full" in str(failure)
    assert "free some space" in failure.detail.remedy
    store.writer.submit(lambda c: c.exec_driver_sql("PRAGMA max_page_count=100000")).result()
    store.writer.submit(grow).result()
    store.close()


def test_a_lost_connection_fails_the_batch_and_the_next_one_connects_again(postgresql_url: str, tmp_path: Any) -> None:
    store = Store.open(tmp_path, url=postgresql_url)

    def cut_off(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    failure = store.writer.submit(cut_off).exception()
    assert isinstance(failure, CommitError)
    assert "reachable" in failure.detail.remedy
    assert store.writer.submit(runs.listed, project=None).result() == ()
    store.close()
