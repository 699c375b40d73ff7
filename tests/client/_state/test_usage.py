from __future__ import annotations

import time
from pathlib import Path

import pytest

from atoll.client import UsageError
from atoll.client._state.usage import Spent, UsageLog


def test_sums_survive_a_restart(tmp_path: Path) -> None:
    log = UsageLog(tmp_path)
    log.add(rounds=1)
    log.add(transferred_bytes=500)
    log.add(rounds=1, transferred_bytes=7)
    assert UsageLog(tmp_path).spent() == log.spent() == Spent(2, 507)


def test_a_day_later_it_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    log = UsageLog(tmp_path)
    log.add(rounds=3)
    monkeypatch.setattr(time, "time", lambda: now + 23 * 3600)
    log.add(rounds=1)
    assert log.spent().rounds == 4
    monkeypatch.setattr(time, "time", lambda: now + 26 * 3600)
    assert log.spent().rounds == 1


def test_a_clock_set_back_never_loosens_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = UsageLog(tmp_path)
    log.add(rounds=3)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 48 * 3600)
    log.add(rounds=1)
    assert log.spent().rounds == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"1": 2}', '{"x": [1, 2]}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "usage.json").write_text(text)
    with pytest.raises(UsageError, match=r"usage.json is damaged"):
        UsageLog(tmp_path)
