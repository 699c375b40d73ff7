from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atoll.client import Evaluation, Update, UpdateError
from atoll.client.testing import make_task, model_of
from atoll.client.update import MAX_METRICS, check_evaluation, check_update, finite_metrics

MODEL = model_of({"w": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.uint16)})
GOOD: dict[str, Any] = {"w": np.ones((2, 2)), "b": np.ones(3, np.float32)}
LISTS: Any = GOOD | {"w": [[0, 0], [0, 0]]}


def check(update: Any) -> None:
    check_update(update, MODEL.layout, make_task(max_weight=10))


@pytest.mark.parametrize("bias", [np.zeros(3, np.uint16), np.zeros(3, np.float16), np.zeros(3, np.float64)])
def test_any_float_type_and_the_bits_of_bfloat16_pass(bias: Any) -> None:
    check(Update(weights=GOOD | {"b": bias}, weight=1))
    check(Update(delta=GOOD | {"b": bias}, weight=np.int64(10)))  # type: ignore[arg-type]  # users count with numpy


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (None, "must return an atoll.client.Update, not NoneType"),
        (Update(weight=1), "either weights"),
        (Update(weights=GOOD, delta=GOOD, weight=1), "not both"),
        (
            Update(weights=GOOD | {"extra": np.zeros(1)}, weight=1),
            r"^the update has the unknown tensor 'extra'; the model has tensors 'w', 'b'$",
        ),
        (Update(weights=LISTS, weight=1), "'w' is a list; a numpy array"),
        (Update(weights=GOOD | {"w": np.zeros(4)}, weight=1), r"shape \[4\], the model's has \[2, 2\]"),
        (Update(weights=GOOD | {"w": np.zeros((2, 2), np.uint16)}, weight=1), "element type uint16"),
        (Update(weights=GOOD | {"b": np.zeros(3, np.int32)}, weight=1), "element type int32"),
        (Update(weights=GOOD, weight=0), "at least 1 example"),
        (Update(weights=GOOD, weight=-3), "is -3"),
        (Update(weights=GOOD, weight=11), "11, above the 10"),
        (Update(weights=GOOD, weight=1.5), "is 1.5; the number of examples"),  # type: ignore[arg-type]
        (Update(weights=GOOD, weight=True), "is True"),
        (Update(weights=GOOD, weight=1, metrics={"": 1.0}), "metric name ''"),
        (Update(weights=GOOD, weight=1, metrics={"loss": "low"}), "'loss' is 'low'"),  # type: ignore[dict-item]
        (Update(weights=GOOD, weight=1, metrics={str(i): 1.0 for i in range(MAX_METRICS + 1)}), "65 metrics"),
    ],
)
def test_refuses(update: Any, message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        check(update)


def test_evaluations_are_checked_too() -> None:
    check_evaluation(Evaluation({"loss": 1.0}, 5))
    for wrong, message in [(None, "not NoneType"), (Evaluation({}, 0), "Evaluation.weight is 0")]:
        with pytest.raises(UpdateError, match=message):
            check_evaluation(wrong)  # type: ignore[arg-type]


def test_metrics_that_are_not_finite_are_left_out() -> None:
    metrics = {"a": np.float32(1.5), "b": float("nan"), "c": float("inf"), "d": 2}
    assert finite_metrics(metrics) == {"a": 1.5, "d": 2.0}  # type: ignore[arg-type]  # numpy's scalars are numbers too
