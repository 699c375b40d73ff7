"""Frozen tensors in whole runs: the same bits as with participants that leave these tensors alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import Aggregation, Cohort, Evaluation, FedAvgM, Federation, Job, Privacy, Result, SetupError

RANDOM = np.random.default_rng(3)
INITIAL: dict[str, npt.NDArray[Any]] = {
    "embed.table": RANDOM.normal(size=(7, 30)).astype(np.float32),
    "body": RANDOM.normal(size=(40, 5)).astype(np.float32),
    "embed.scale": RANDOM.normal(size=3).astype(np.float32),
    "head": RANDOM.normal(size=(5, 2)),
}
FROZEN = ("embed.*",)
Frozen = Literal["trains", "spares", "omits"]


class Trainer(Participant):
    """Moves each tensor at random, the same in every run; frozen ones too, by zeros, or not at all."""

    examples = 5

    def __init__(self, number: int, frozen: Frozen) -> None:
        self.number, self.frozen = number, frozen

    def fit(self, model: Model, task: Task) -> Update:
        delta: dict[str, npt.NDArray[Any]] = {}
        for place, name in enumerate(sorted(model)):
            draw = np.random.default_rng([task.round, self.number, place])
            step = draw.normal(size=model[name].shape)
            if not name.startswith("embed."):
                delta[name] = step
            elif self.frozen != "omits":
                delta[name] = 1000 * step if self.frozen == "trains" else np.zeros_like(step)
        return Update(delta=delta, weight=self.examples)


def played(patterns: tuple[str, ...], frozen: Frozen, **tables: Any) -> Result:
    aggregation = {"frozen": patterns} | tables.pop("aggregation", {})
    job = Job(
        rounds=4,
        cohort=Cohort(size=3, seed=1),
        aggregation=Aggregation(**aggregation),
        evaluation=Evaluation(before_training=False, final=False),
        **({"optimiser": FedAvgM(momentum=0.5)} | tables),
    )
    federation = Federation(participants=lambda number: Trainer(number, frozen), population=3)
    return federation.run(job, initial=INITIAL)


@pytest.mark.parametrize("encoding", ["float32", "bfloat16"])
@pytest.mark.parametrize("frozen", ["trains", "spares", "omits"])
def test_a_frozen_run_has_the_bits_of_one_whose_participants_send_zeros(frozen: Frozen, encoding: str) -> None:
    result = played(FROZEN, frozen, aggregation={"encoding": encoding})
    plain = played((), "spares", aggregation={"encoding": encoding})
    assert sorted(result.model) == sorted(INITIAL)
    for name, values in plain.model.items():
        np.testing.assert_array_equal(result.model[name], values, err_msg=name)
    np.testing.assert_array_equal(result.model["embed.table"], INITIAL["embed.table"])
    assert not np.array_equal(result.model["body"], INITIAL["body"])


def test_quantised_updates_leave_frozen_tensors_as_they_are() -> None:
    result = played(FROZEN, "trains", aggregation={"encoding": "int8", "fragments": 2})
    for name in ("embed.table", "embed.scale"):
        np.testing.assert_array_equal(result.model[name], INITIAL[name])
    assert not np.array_equal(result.model["body"], INITIAL["body"])
    assert not np.array_equal(result.model["head"], INITIAL["head"])


def test_a_private_run_neither_noises_nor_counts_what_is_frozen() -> None:
    """Frozen tensors would use up the clip norm, and the others would hardly move."""
    privacy = Privacy(
        population="people", noise_multiplier=1e-3, delta=1e-5, clip=100.0, mechanism="gaussian", max_participations=4
    )
    private = played(FROZEN, "trains", privacy=privacy, aggregation={"weighting": "uniform"})
    plain = played((), "spares", aggregation={"weighting": "uniform"})
    for name in ("embed.table", "embed.scale"):
        np.testing.assert_array_equal(private.model[name], INITIAL[name])
    for name in ("body", "head"):
        assert not np.array_equal(private.model[name], plain.model[name])
        np.testing.assert_allclose(private.model[name], plain.model[name], atol=2.0)  # 40 deviations of the noise


def test_a_pattern_without_a_tensor_is_refused() -> None:
    with pytest.raises(SetupError, match="matches no tensor"):
        played(("embedding.*",), "trains")
