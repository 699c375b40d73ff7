from __future__ import annotations

import threading

import numpy as np
import pytest

from atoll.client import Continuous, Settings, TrainerError, continuous
from atoll.client.continuous import Weights
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.wire.chunks import ElementRange
from tests.patience import WAIT_S

START = {"w": np.zeros(4, np.float32)}


class Counting(Continuous):
    """Each step adds 1 to every weight and uses 2 examples; the test hands out the steps."""

    examples = 10
    min_examples = 4

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(0)
        self.taken = 0

    def step(self, weights: Weights, settings: Settings) -> int:
        self.settings = settings
        if not self.allowed.acquire(blocking=False):
            return 0
        for array in weights.values():
            np.add(array, 1, out=array)
        self.taken += 1
        return 2

    def let(self, steps: int) -> None:
        self.allowed.release(steps)
        self._nudge.set()


@pytest.fixture
def trainer() -> Counting:
    return Counting()


def test_a_report_waits_for_enough_examples_and_counts_them(trainer: Counting) -> None:
    trainer.let(2)
    result = FakeServer(START).run(trainer)
    trainer.close()
    (report,) = result.rounds[0].reports
    assert (report.weight, report.partial) == (4, True)
    np.testing.assert_array_equal(report.update, 2.0)


def test_progress_between_rounds_is_carried_to_the_new_global_model(trainer: Counting) -> None:
    trainer.let(2)
    first = trainer.fit(model_of(START), make_task(max_weight=100))
    trainer.let(3)
    with trainer._changed:
        assert trainer._changed.wait_for(lambda: trainer.taken == 5, WAIT_S)
    model = model_of({"w": np.full(4, 100, np.float32)})
    second = trainer.fit(model, make_task(max_weight=100, settings=Settings({"lr": 1.0})))
    trainer.close()
    assert (first.weight, second.weight) == (4, 6)
    np.testing.assert_array_equal(second.tensors["w"], 103.0)


def test_progress_on_other_fragments_waits_for_a_round_that_asks_for_them(trainer: Counting) -> None:
    start = {"w": np.zeros(4, np.float32), "b": np.zeros(2, np.float32)}
    w, b = ElementRange.run(0, 4), ElementRange.run(4, 2)
    trainer.let(2)
    first = trainer.fit(model_of(start), make_task(max_weight=100, ranges=(w,)))
    np.testing.assert_array_equal(first.tensors["w"], 2.0)
    moved = model_of({"w": np.full(4, 10, np.float32), "b": np.zeros(2, np.float32)})
    trainer.min_examples = 0  # the next invitation comes before another step is done: nothing may be lost by that
    second = trainer.fit(moved, make_task(max_weight=100, ranges=(w,)))
    np.testing.assert_array_equal(second.tensors["w"], 10.0)
    np.testing.assert_array_equal(second.tensors["b"], 2.0)
    trainer.min_examples = 6
    trainer.let(3)
    third = trainer.fit(moved, make_task(max_weight=100, ranges=(b,)))
    np.testing.assert_array_equal(third.tensors["b"], 5.0)
    trainer.min_examples = 0
    last = trainer.fit(moved, make_task(max_weight=100))
    trainer.close()
    np.testing.assert_array_equal(last.tensors["b"], 0.0)
    np.testing.assert_array_equal(last.tensors["w"], 13.0)


def test_what_was_handed_over_does_not_change_any_more(trainer: Counting) -> None:
    trainer.let(2)
    update = trainer.fit(model_of(START), make_task())
    trainer.let(5)
    with trainer._changed:
        assert trainer._changed.wait_for(lambda: trainer.taken == 7, WAIT_S)
    trainer.close()
    np.testing.assert_array_equal(update.tensors["w"], 2.0)


def test_the_weight_stays_within_what_is_accepted(trainer: Counting) -> None:
    trainer.let(50)
    trainer.min_examples = 100
    update = trainer.fit(model_of(START), make_task(max_weight=10))
    trainer.close()
    assert (update.weight, update.partial) == (10, False)


def test_a_stop_ends_the_wait(trainer: Counting) -> None:
    trainer.idle_s = 60.0
    trainer.let(1)
    task = make_task()
    timer = threading.Timer(0.1, task.control.stop, ("enough",))
    timer.start()
    update = trainer.fit(model_of(START), task)
    trainer.close()
    assert update.weight in (0, 2)
    assert task.should_stop


def test_a_failing_step_fails_the_next_report() -> None:
    class Failing(Continuous):
        def step(self, weights: Weights, settings: Settings) -> int:
            del weights, settings
            raise ValueError("no data")

    trainer = Failing()
    with pytest.raises(TrainerError, match="step raised ValueError: no data"):
        trainer.fit(model_of(START), make_task())
    trainer.close()


def test_narrow_types_are_trained_in_float32() -> None:
    class Types(Counting):
        def step(self, weights: Weights, settings: Settings) -> int:
            self.types = {name: array.dtype.name for name, array in weights.items()}
            return super().step(weights, settings)

    trainer = Types()
    trainer.let(2)
    types = {"b": np.uint16, "h": np.float16, "d": np.float64, "f": np.float32}
    FakeServer({name: np.zeros(1, dtype) for name, dtype in types.items()}).run(trainer)
    trainer.close()
    assert trainer.types == {"b": "float32", "h": "float32", "d": "float64", "f": "float32"}


def test_the_thread_ends_with_the_session(trainer: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "JOIN_S", WAIT_S)
    trainer.let(2)
    trainer.fit(model_of(START), make_task())
    thread = trainer._thread
    assert thread is not None
    trainer.close()
    assert not thread.is_alive()
