"""Python's garbage is collected after the steps that are due, and only then."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from atoll.datacenter.train.collector import Collector

pytestmark = pytest.mark.slow


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


def test_objects_that_die_after_surviving_a_collection_are_collected() -> None:
    with Collector(1).running() as collector:
        collector.after_step(1)
        kept = Loop()
        left = weakref.ref(kept)
        for made in (2, 3):
            collector.after_step(made)
        del kept
        assert left() is not None
        collector.after_step(4)
        assert left() is None


def test_objects_from_before_the_first_collection_are_collected_at_the_end() -> None:
    gc.unfreeze()  # the suite freezes what it has loaded
    kept = Loop()
    left = weakref.ref(kept)
    with Collector(1).running() as collector:
        collector.after_step(1)
        assert gc.get_freeze_count()
        del kept
        collector.after_step(2)
        assert left() is not None
    assert not gc.get_freeze_count()
    gc.collect()
    assert left() is None


def test_zero_leaves_it_to_python() -> None:
    with Collector(0).running() as collector:
        assert gc.isenabled()
        collector.after_step(3)


def test_what_its_caller_has_turned_off_stays_off() -> None:
    gc.disable()
    with Collector(1).running():
        assert not gc.isenabled()
    assert not gc.isenabled()
