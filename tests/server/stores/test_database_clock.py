"""This machine's clock compared with the database server's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from atoll.server.stores import Store
from atoll.server.stores.database_clock import Skew, skew, warn_of_skew

HOUR_S = 3600.0


def shifted(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


@pytest.mark.parametrize(("seconds", "way"), [(HOUR_S, "ahead of"), (-HOUR_S, "behind")])
def test_an_hour_is_found_and_named(tmp_path: Path, postgresql_url: str, seconds: float, way: str) -> None:
    with closing(Store.open(tmp_path, url=postgresql_url)) as store:
        found = store.reader.read(lambda connection: skew(connection, shifted(seconds)))
    assert found is not None
    assert abs(abs(found.ahead_s) - HOUR_S) <= found.within_s + 1.0
    assert f" s {way} that of the database server" in str(found)


def test_clocks_that_agree_are_not_mentioned(
    tmp_path: Path, postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store.open(tmp_path, url=postgresql_url)) as store, caplog.at_level(logging.WARNING):
        store.reader.read(warn_of_skew)
    assert "clock" not in caplog.text


def test_a_clock_that_is_set_wrong_is_warned_of(
    tmp_path: Path, postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store.open(tmp_path, url=postgresql_url)) as store, caplog.at_level(logging.WARNING):
        store.reader.read(lambda connection: warn_of_skew(connection, shifted(HOUR_S)))
    assert "ahead of that of the database server; set the clocks" in caplog.text


def test_a_slow_answer_is_no_skew() -> None:
    assert Skew(ahead_s=4.0, within_s=10.0).least_s == 0.0


def test_sqlite_has_this_machines_clock(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        assert store.reader.read(skew) is None
