"""Statistics with noise through the whole engine: its size, clipping, charges, and what participants decline."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from atoll.client import Participant
from atoll.operator import Cohort, Job, Privacy, Statistics
from atoll.simulation import Federation, ParticipantError, RunFailedError
from atoll.statistics import Answerer, first_state, row_norm

FALSE_ALARM = 1e-6
SIZE, ROWS = 4, 200
ASKED = Statistics(numeric=("age", "dose"), bounds={"age": (0, 120), "dose": (0, 1)}, max_rows=ROWS, bins=1024)
WARDS = Privacy(population="wards", epsilon=1.0, delta=1e-6)


class Ward(Participant):
    rows = ROWS

    def __init__(self, number: int) -> None:
        self.number = number

    def table(self) -> dict[str, Any]:
        rng = np.random.default_rng(self.number)
        return {"age": rng.normal(50, 12, self.rows), "dose": rng.random(self.rows)}


class Heap(Ward):
    """Ward 0 has fifty times as many rows as the others; all rows are the same."""

    def table(self) -> dict[str, Any]:
        rows = 50 * ROWS if self.number == 0 else ROWS
        return {"age": np.full(rows, 120.0), "dose": np.ones(rows)}


def job(privacy: Privacy, asked: Statistics = ASKED) -> Job:
    return Job(cohort=Cohort(size=SIZE), statistics=asked, privacy=privacy)


def exact(kind: type[Ward]) -> Any:
    state = first_state(ASKED.query)
    return sum(Answerer(ASKED.query, kind(number).table()).answer(0, state)["answer"] for number in range(SIZE))


@pytest.mark.parametrize(
    ("unit", "norm"), [("row", row_norm(ASKED.query)), ("participant", ROWS * row_norm(ASKED.query))]
)
def test_the_noise_on_the_sums_is_the_declared_one_and_is_charged(unit: Any, norm: float) -> None:
    result = Federation(Ward, SIZE).run(job(WARDS.model_copy(update={"unit": unit})), strict=True)
    found = result.statistics()
    noise = result.model["answer"] - exact(Ward)
    assert found.noise is not None
    assert found.noise > norm  # epsilon 1 takes a noise multiplier above 1
    squares = float(np.sum(np.square(noise / found.noise)))
    assert chi2.ppf(FALSE_ALARM / 2, noise.size) < squares < chi2.isf(FALSE_ALARM / 2, noise.size)
    assert abs(noise.mean()) < 6 * found.noise / math.sqrt(noise.size)
    ledger = result.ledger
    assert ledger is not None
    (charge,) = ledger.charges
    assert charge.noise_multiplier is not None
    assert found.noise == pytest.approx(charge.noise_multiplier * norm)
    assert 0.9 < ledger.epsilon < 1.1  # a population's filter is a little above the run's own 1
    assert ledger.population.unit == unit
    assert charge.clip == pytest.approx(norm)


def test_a_participant_of_many_rows_moves_the_sums_by_the_clip_norm() -> None:
    quiet = WARDS.model_copy(update={"epsilon": None, "noise_multiplier": 0.01})
    result = Federation(Heap, SIZE).run(job(quiet), strict=True)
    rows = result.statistics().rows
    assert rows == pytest.approx(SIZE * ROWS, abs=60)  # its 10,000 rows count as 200


def test_a_participant_of_too_many_rows_fails_where_rows_are_protected() -> None:
    with pytest.raises(ParticipantError, match=r"statistics\.max_rows = 200: the operator must raise it"):
        Federation(Heap, SIZE).run(job(WARDS.model_copy(update={"unit": "row"})), strict=True)


def test_participants_decline_noise_that_would_not_hide_a_small_cell() -> None:
    weak = replace_epsilon(200.0)
    with pytest.raises(RunFailedError, match=r"this participant answers from 5 \(Participant\.min_cell_rows\)"):
        Federation(Ward, SIZE).run(job(weak), strict=True)


def replace_epsilon(epsilon: float) -> Privacy:
    return WARDS.model_copy(update={"unit": "row", "epsilon": epsilon})


def test_a_report_states_the_errors(tmp_path: Any) -> None:
    asked = Statistics(numeric=("age",), bounds={"age": (0, 120)}, max_rows=ROWS)
    result = Federation(Ward, SIZE).run(job(replace_epsilon(1.0), asked), strict=True)
    found = result.statistics()
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{found.rows} ± {found.noise:.2g} rows of 4 participants" in page
    assert "standard error of the noise" in page
