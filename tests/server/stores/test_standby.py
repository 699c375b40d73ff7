"""Standbys at a PostgreSQL database, and the turns of the active server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from atoll.server.buckets import BucketUnavailableError
from atoll.server.errors import ServerError
from atoll.server.stores import CommitError, SchemaError, Store, StoreUnavailableError, runs
from atoll.server.stores.database_place import note
from atoll.server.stores.dialects import parse_url
from atoll.server.stores.directory_lock import DirectoryLock
from atoll.server.stores.server_turns import WorkPlace, find_work_place
from atoll.server.stores.standby import Standby, StandbyEndedError, standing_by
from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer
from tests.server.stores.samples import RUN, run

pytestmark = pytest.mark.slow


class Waiting:
    """A standby in a separate thread.

    Attributes:
        sentences: its messages about the wait, oldest first.
        store: its state, once it may use the database.
        places: the addresses of active servers that it found.
    """

    def __init__(
        self, folder: Path, url: str, silence_s: float, threads: ThreadPoolExecutor, *, returns: bool = False
    ) -> None:
        note(folder, parse_url(url))
        self.sentences: list[str] = []
        self._said = threading.Condition()
        self.places: queue.Queue[WorkPlace] = queue.Queue()
        self.standby = Standby("second:7400", silence_s, self._note, returns=returns, found=self.places.put)
        self.store: Future[Store] = threads.submit(Store.open, folder, standby=self.standby)

    def said(self, words: str) -> None:
        """Wait until a sentence has these words."""
        with self._said:
            assert self._said.wait_for(lambda: any(words in line for line in self.sentences), WAIT_S), self.sentences

    def _note(self, sentence: str) -> None:
        with self._said:
            self.sentences.append(sentence)
            self._said.notify_all()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The standby's data directory."""
    made = tmp_path / "second"
    made.mkdir()
    return made


def first_server(tmp_path: Path, url: str) -> Store:
    store = Store.open(tmp_path / "first", url=url, standby=Standby("first:7400", 60.0, _unheard))
    store.writer.submit(runs.add, run()).result()
    return store


def _unheard(sentence: str) -> None:
    raise AssertionError(f"it need not wait, and says: {sentence}")


def test_it_takes_over_when_the_active_server_ends(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 60.0, threads)
    second.said("first:7400 is the active server")
    assert first.writer.submit(standing_by).result() == 1
    assert not second.store.done()
    first.close()
    store = second.store.result(WAIT_S)
    assert store.reader.submit(runs.get, RUN).result() == run()
    assert store.writer.submit(standing_by).result() == 0
    store.close()


def test_another_federations_directory_does_not_stand_by(tmp_path: Path, folder: Path, postgresql_url: str) -> None:
    first = first_server(tmp_path, postgresql_url)
    with pytest.raises(SchemaError, match="second is not its data directory") as refused:
        Store.open(folder, url=postgresql_url, standby=Standby("second:7400", 60.0, _unheard))
    assert "atoll server standby" in refused.value.detail.remedy
    first.close()


def test_a_server_that_falls_silent_is_replaced_and_never_writes_again(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 0.2, threads)
    store = second.store.result(WAIT_S)
    assert second.sentences[-1] == "first:7400 has sent the database nothing for 0.2 s: taking over"
    with pytest.raises(CommitError, match="another server has used the database"):
        first.writer.submit(runs.extend, RUN, rounds_total=9, released=1).result()
    assert first.turn is not None
    assert first.turn.over
    store.close()
    with pytest.raises(CommitError, match="another server has used the database"):
        first.writer.submit(runs.extend, RUN, rounds_total=9, released=1).result()
    first.close()


def test_a_server_whose_statement_takes_long_is_not_silent(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    seen = threading.Event()

    def long_statement(connection: Connection) -> str:
        """Waits inside the database for as long as the test holds a lock."""
        seen.set()
        connection.execute(text("SELECT pg_advisory_xact_lock(7)"))
        return "done"

    with psycopg.connect(postgresql_url) as held:
        held.execute("SELECT pg_advisory_xact_lock(7)")
        outcome = first.writer.submit(long_statement)
        assert seen.wait(WAIT_S)
        second = Waiting(folder, postgresql_url, 0.0, threads)
        second.said("is the active server")
        assert not second.store.done()
        held.commit()
    assert outcome.result() == "done"
    second.store.result(WAIT_S).close()
    first.close()


def test_it_can_be_stopped_while_it_waits(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 60.0, threads)
    second.said("is the active server")
    second.standby.end()
    with pytest.raises(StandbyEndedError):
        second.store.result(WAIT_S)
    DirectoryLock.take(folder).release()
    first.close()


def test_two_that_wait_do_not_both_take_over(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    (tmp_path / "third").mkdir()
    first = first_server(tmp_path, postgresql_url)
    waiting = [Waiting(place, postgresql_url, 60.0, threads) for place in (folder, tmp_path / "third")]
    for one in waiting:
        one.said("is the active server")
    first.close()
    wait([one.store for one in waiting], WAIT_S, FIRST_COMPLETED)
    winner, other = sorted(waiting, key=lambda one: not one.store.done())
    other.said("second:7400 is the active server")
    assert not other.store.done()
    winner.store.result().close()
    other.store.result(WAIT_S).close()


def test_the_one_that_takes_over_counts_the_others(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    """They may have an older version, and then an upgrade that locks them out is refused."""
    (tmp_path / "third").mkdir()
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 60.0, threads)
    second.said("is the active server")
    assert first.writer.submit(standing_by).result() == 1
    assert first.writer.submit(second.standby.others).result() == 0
    third = Waiting(tmp_path / "third", postgresql_url, 60.0, threads)
    third.said("is the active server")
    assert first.writer.submit(second.standby.others).result() == 1
    for waiting in (second, third):
        waiting.standby.end()
        with pytest.raises(StandbyEndedError):
            waiting.store.result(WAIT_S)
    first.close()


def test_one_that_must_not_use_the_database_any_more_does_not_wait_for_it(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    for statement in (
        "UPDATE alembic_version SET version_num = '9999'",
        "INSERT INTO schema_upgrades VALUES ('9999', '9998', 1.0, '9.9.9')",
    ):
        first.writer.submit(Connection.execute, text(statement)).result()
    with pytest.raises(SchemaError, match="servers from revision 9998 on may use it"):
        Waiting(folder, postgresql_url, 60.0, threads).store.result(WAIT_S)
    first.writer.submit(runs.extend, RUN, rounds_total=9, released=1).result()
    first.close()


def test_it_waits_while_the_database_is_away(
    tmp_path: Path, folder: Path, database_server: DatabaseServer, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 60.0, threads)
    second.said("is the active server")
    database_server.stop()
    first.close()
    assert not second.store.done()
    database_server.start()
    second.store.result(WAIT_S).close()


def test_a_database_that_cannot_be_reached_at_first_is_an_error(
    folder: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    second = Waiting(folder, f"postgresql://me@/atoll?host={tmp_path}", 60.0, threads)
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        second.store.result(WAIT_S)


def test_a_server_that_was_active_before_waits_for_a_database_that_cannot_be_reached(
    folder: Path, database_server: DatabaseServer, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    database_server.stop()
    try:
        second = Waiting(folder, postgresql_url, 60.0, threads, returns=True)
        second.said("the database does not answer")
        assert not second.store.done()
    finally:
        database_server.start()
    second.store.result(WAIT_S).close()


def test_a_server_that_was_active_before_waits_for_its_bucket() -> None:
    said: list[str] = []
    answers = iter((BucketUnavailableError("the object store does not answer"), None))

    def opening() -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "opened"

    assert Standby("second:7400", 60.0, said.append, returns=True).opened(opening) == "opened"
    assert said == ["the object store does not answer"]
    answers = iter((BucketUnavailableError("the object store does not answer"), None))
    with pytest.raises(BucketUnavailableError):
        Standby("second:7400", 60.0, said.append).opened(opening)


def test_it_says_so_if_its_account_may_not_end_a_server_that_has_failed(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS watcher")
        connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    guest = parse_url(postgresql_url).set(username="watcher", drivername="postgresql")
    second = Waiting(folder, guest.render_as_string(hide_password=False), 0.0, threads)
    second.said("first:7400 has failed, and this database account may not end its connection: ")
    second.standby.end()
    with pytest.raises(ServerError):
        second.store.result(WAIT_S)
    first.close()


def test_it_says_so_if_the_database_does_not_track_what_the_other_server_does(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE atoll SET track_activities = off")
    first = first_server(tmp_path, postgresql_url)
    second = Waiting(folder, postgresql_url, 0.0, threads)
    second.said("the database does not show this server whether that one fails")
    second.standby.end()
    with pytest.raises(ServerError):
        second.store.result(WAIT_S)
    first.close()


def test_an_account_that_may_not_see_the_other_server_says_so_and_never_ends_it(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    first = first_server(tmp_path, postgresql_url)
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")
    guest = parse_url(postgresql_url).set(username="stranger", drivername="postgresql")
    second = Waiting(folder, guest.render_as_string(hide_password=False), 0.0, threads)
    second.said("whether that one fails: use the same account")
    second.standby.end()
    with pytest.raises(ServerError):
        second.store.result(WAIT_S)
    first.close()


def test_a_server_ends_its_own_lost_connection_and_writes_on(tmp_path: Path, postgresql_url: str) -> None:
    """As after a network failure that the database server has not noticed yet."""
    store = first_server(tmp_path, postgresql_url)
    lost = store.writer._engine.raw_connection()
    lost.detach()
    assert store.writer.submit(runs.listed, project=None).result() == (run(),)
    assert store.turn is not None
    assert not store.turn.over
    store.close()


def test_it_finds_where_the_active_server_serves(
    tmp_path: Path, folder: Path, postgresql_url: str, threads: ThreadPoolExecutor
) -> None:
    """By the number of its turn: addresses of an earlier server are ignored."""
    first = first_server(tmp_path, postgresql_url)
    assert first.turn is not None
    assert first.writer.submit(find_work_place).result() is None
    place = first.writer.submit(first.turn.announce, "fl.example.org", 7400, 7401, "10.0.0.5").result()
    assert place == WorkPlace(1, "fl.example.org", "10.0.0.5:7400", "10.0.0.5:7401")
    second = Waiting(folder, postgresql_url, 60.0, threads)
    assert second.places.get(timeout=WAIT_S) == place
    first.close()
    store = second.store.result(WAIT_S)
    assert store.turn is not None
    assert store.writer.submit(find_work_place).result() is None
    seen = store.writer.submit(store.turn.announce, "fl.example.org", 7500, 7501, "").result()
    assert (seen.turn, seen.main) == (2, "127.0.0.1:7500")
    store.close()
