"""The fake server accepts and refuses what the real server does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import Decision, Evaluation, Model, Participant, Policy, Task, Update, UpdateError
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.statistics import AnswersError, CategoryColumn, NoisedStatistics, StatisticsQuery
from atoll.wire.encoding import Encoding, bfloat16_to_float32, float32_to_bfloat16
from atoll.wire.errors import LayoutError
from atoll.wire.privacy_terms import PrivacyUnit
from tests.patience import WAIT_S
from tests.wire.test_privacy_terms import TERMS

START: dict[str, npt.NDArray[Any]] = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float64)}


class Pull(Participant):
    """Moves every weight a share of the way to its own target."""

    def __init__(self, target: float, examples: int = 10) -> None:
        self.target = target
        self.examples = examples

    def fit(self, model: Model, task: Task) -> Update:
        share = task.settings.number("share", 1.0)
        weights = {name: view + share * (self.target - view) for name, view in model.items()}
        return Update(weights=weights, weight=self.examples, metrics={"target": self.target})

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        assert task.evaluate or task.kind == "evaluate"
        return Evaluation({"distance": float(abs(model["w"] - self.target).mean())}, self.examples)


def test_rounds_average_by_weight() -> None:
    result = FakeServer(START).run(Pull(1.0, 30), Pull(5.0, 10), rounds=2)
    np.testing.assert_allclose(result.model["w"], 2.0)
    np.testing.assert_allclose(result.model["b"], 2.0)
    first, second = result.rounds
    assert [report.weight for report in first.reports] == [30, 10]
    assert first.reports[1].metrics == {"target": 5.0}
    assert first.reports[0].evaluation == {"distance": 1.0}
    assert second.reports[0].evaluation["distance"] == pytest.approx(1.0)
    np.testing.assert_allclose(first.reports[1].update, 5.0)


def test_settings_reach_the_trainer() -> None:
    result = FakeServer(START).run(Pull(8.0), settings={"share": 0.5}, rounds=3)
    np.testing.assert_allclose(result.model["w"], 7.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_models_keep_their_element_type(dtype: type[np.generic]) -> None:
    result = FakeServer({"w": np.zeros(3, dtype)}).run(Pull(1.0))
    assert result.model["w"].dtype == dtype
    np.testing.assert_array_equal(result.model["w"], 1.0)


def test_bfloat16_models_travel_as_bits() -> None:
    class Bits(Participant):
        def fit(self, model: Model, task: Task) -> Update:
            del task
            return Update(weights={"w": float32_to_bfloat16(model.float32("w") + 2)}, weight=1)

    start = {"w": float32_to_bfloat16(np.ones(3, np.float32))}
    result = FakeServer(start, encoding=Encoding.BFLOAT16).run(Bits())
    np.testing.assert_array_equal(bfloat16_to_float32(result.model["w"]), 3.0)


def test_the_encoding_rounds_as_the_wire_does() -> None:
    result = FakeServer({"w": np.zeros(1, np.float32)}, encoding=Encoding.FLOAT16).run(Pull(0.1))
    assert result.model["w"][0] == np.float16(0.1)


@pytest.mark.parametrize(
    ("target", "message"), [(np.nan, "'w' is nan"), (np.inf, "'w' is inf"), (33.0, "'w' is 33.0 at \\[0, 0\\]")]
)
def test_values_that_the_real_server_rejects_end_the_test(target: float, message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        FakeServer(START).run(Pull(target))


def test_weights_above_the_declared_one_end_the_test() -> None:
    class Greedy(Pull):
        def fit(self, model: Model, task: Task) -> Update:
            return Update(weights=dict(model), weight=task.max_weight + 1)

    with pytest.raises(UpdateError, match="11, above the 10"):
        FakeServer(START).run(Greedy(1.0))


def test_the_global_model_cannot_be_changed_in_place() -> None:
    class Careless(Participant):
        def fit(self, model: Model, task: Task) -> Update:
            del task
            model["w"][:] = 1
            return Update(weights=dict(model), weight=1)

    with pytest.raises(ValueError, match="read-only"):
        FakeServer(START).run(Careless())


def test_policies_are_asked() -> None:
    policy = Policy(hook=lambda task: Decision.decline("no") if task.round == 1 else Decision.accept())
    result = FakeServer(START).run(Pull(1.0), rounds=3, policy=policy)
    assert [len(played.reports) for played in result.rounds] == [1, 0, 1]
    assert result.rounds[1].declined == ((0, "no"),)
    assert FakeServer(START).run(Pull(1.0), policy=Policy(min_cohort=2)).rounds[0].reports == ()


def test_deadlines_pass_here_too() -> None:
    class Slow(Participant):
        def fit(self, model: Model, task: Task) -> Update:
            assert task.stop_event.wait(WAIT_S)
            return Update(weights=dict(model), weight=1, partial=True)

    assert FakeServer(START, window_s=0.05).run(Slow()).rounds[0].reports[0].partial


def test_one_evaluation() -> None:
    assert FakeServer(START).evaluate(Pull(2.0)).metrics == {"distance": 2.0}


def test_tasks_for_unit_tests() -> None:
    task = make_task(remaining_s=5000.0, cohort_size=9)
    assert 5000.0 - WAIT_S < task.remaining_s <= 5000.0
    assert (task.cohort_size, task.round, task.proximal_mu) == (9, 0, 0.0)


def test_element_types_that_do_not_travel_are_named() -> None:
    with pytest.raises(LayoutError, match="'n' has element type int64; allowed are float32"):
        model_of({"n": np.zeros(1, np.int64)})


AGES = [np.random.default_rng(seed).normal(50 + 10 * seed, 5, 40 + seed) for seed in range(3)]
ASKED = StatisticsQuery(("age",), (CategoryColumn("sex", ("f", "m")),), quantiles=(0.5,))


class Ward(Participant):
    def __init__(self, number: int) -> None:
        self.number = number

    def table(self) -> dict[str, Any]:
        return {"age": AGES[self.number], "sex": ["f", "m"] * 20 + ["f"] * self.number}


def test_statistics_are_those_of_the_pooled_rows() -> None:
    played = FakeServer.statistics(ASKED, *map(Ward, range(3)))
    pooled = np.concatenate(AGES)
    assert played.findings is not None
    age = played.findings.column("age")
    assert (len(played.rounds), played.findings.participants, age.count) == (4, 3, pooled.size)
    assert age.mean == pytest.approx(pooled.mean(), rel=1e-12)
    assert played.findings.categories[0].counts == {"f": 63, "m": 60}
    assert [report.participant for report in played.rounds[0].reports] == [0, 1, 2]


def test_statistics_with_terms_have_the_declared_bounds_and_no_noise() -> None:
    asked = replace(ASKED, noised=NoisedStatistics(((0, 120),), 42))
    terms = replace(TERMS, unit=PrivacyUnit.ROW, noise_multiplier=4.0, clip_norm=2.0)
    found = FakeServer.statistics(asked, *map(Ward, range(3)), privacy=terms).findings
    assert found is not None
    assert (found.rows, found.column("age").count) == (123, 123)
    assert found.column("age").mean == pytest.approx(np.concatenate(AGES).mean(), abs=120 * 2.0**-16)


def test_who_declines_statistics_is_named_and_there_are_no_figures() -> None:
    declined = FakeServer.statistics(replace(ASKED, min_rows=1), *map(Ward, range(3)))
    assert declined.findings is None
    assert [number for number, _ in declined.rounds[0].declined] == [0, 1, 2]
    refused = FakeServer.statistics(ASKED, Ward(0), Pull(1.0), policy=Policy(runs=("another",)))
    assert "'test' is not among those allowed" in refused.rounds[0].declined[0][1]


def test_tables_that_change_between_rounds_are_an_error() -> None:
    class Growing(Ward):
        calls = 0

        def table(self) -> dict[str, Any]:
            self.calls += 1
            return {"age": np.arange(20.0 + self.calls), "sex": ["f"] * (20 + self.calls)}

    with pytest.raises(AnswersError, match="their tables changed during the run"):
        FakeServer.statistics(ASKED, Growing(0), Ward(1), Ward(2))
