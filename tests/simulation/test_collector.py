from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atoll.client import Model, Task, Update
from atoll.simulation import Cohort, Federation, Job
from atoll.simulation.collector import paused, set_aside
from tests.simulation.test_federation import MODEL, Stepping


class Circle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_nothing_is_collected_in_a_pause_which_ends_with_an_error_too() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise LookupError

    with pytest.raises(LookupError), paused():
        fail()
    assert gc.isenabled()


def test_a_pause_leaves_a_collector_that_is_off_as_it_was() -> None:
    gc.disable()
    with paused():
        pass
    try:
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_older_garbage_waits_until_the_block_has_ended() -> None:
    loaded = list[Circle]()
    with set_aside(lambda: loaded.append(Circle())):
        old = weakref.ref(loaded.pop())
        new = weakref.ref(Circle())
        gc.collect(0)  # where all objects would be that were not set aside
        assert new() is None
        assert old() is not None
    gc.collect()
    assert old() is None


def test_nothing_is_collected_while_modules_are_loaded() -> None:
    collecting = list[bool]()
    with set_aside(lambda: collecting.append(gc.isenabled())):
        assert gc.isenabled()
    assert collecting == [False]


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with set_aside(lambda: None):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_module_that_cannot_be_loaded_leaves_the_collector_as_it_was() -> None:
    def load() -> None:
        raise ImportError("no such library")

    with pytest.raises(ImportError, match="no such library"), set_aside(load):
        pass


class Collecting(Stepping):
    """Reports whether its process collects garbage."""

    def fit(self, model: Model, task: Task) -> Update:
        return replace(super().fit(model, task), metrics={"collects": float(gc.isenabled())})


@pytest.mark.parametrize("workers", [0, 1])
def test_participants_work_with_the_collector_on(workers: int) -> None:
    federation = Federation(participants=Collecting, population=2)
    result = federation.run(Job(rounds=1, cohort=Cohort(size=2)), initial=MODEL, workers=workers)
    assert result.history.metric("train/collects") == [1.0]
