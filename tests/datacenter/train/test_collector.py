"""Python's garbage is collected after the steps that are due, and only then."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from atoll.datacenter.train.collector import Collector


class Loop:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.own = self


def loop() -> weakref.ref[Loop]:
    return weakref.ref(Loop())


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Python's own setting, even if a test changes it."""
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_collects_after_the_steps_that_are_due() -> None:
    with Collector(3).running() as collector:
        assert not gc.isenabled()
        left = loop()
        for made in (1, 2):
            collector.after_step(made)
            assert left() is not None
        collector.after_step(3)
        assert left() is None
    assert gc.isenabled()


def test_zero_leaves_it_to_python() -> None:
    with Collector(0).running() as collector:
        assert gc.isenabled()
        collector.after_step(3)


def test_what_its_caller_has_turned_off_stays_off() -> None:
    gc.disable()
    with Collector(1).running():
        assert not gc.isenabled()
    assert not gc.isenabled()
