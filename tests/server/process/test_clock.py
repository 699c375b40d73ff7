import time

import pytest

from atoll.server.process import clock
from atoll.server.process.clock import SteadyClock


def test_it_starts_with_the_wall_clock_and_continues_with_a_monotonic_one(monkeypatch: pytest.MonkeyPatch) -> None:
    booted, wall = 100.0, 1_700_000_000.0
    monkeypatch.setattr(clock, "boot_s", lambda: booted)
    monkeypatch.setattr(time, "time", lambda: wall)
    steady = SteadyClock()
    assert steady() == 1_700_000_000.0
    booted, wall = 107.5, wall + 3600.0
    assert steady() == 1_700_000_007.5


def test_the_boot_clock_only_grows() -> None:
    first = clock.boot_s()
    assert clock.boot_s() >= first
