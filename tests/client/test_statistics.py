"""A participant's answers: which queries it declines, and what an error reveals to the operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.client import Participant, PublicError, TaskKind, UpdateError
from atoll.client._session.protection import LocalProtection, Protection
from atoll.client._statistics import answer
from atoll.client.local_privacy import Gaussian, Limit, LocalPrivacy
from atoll.client.participant import objection_of
from atoll.client.testing import make_task, model_of
from atoll.statistics import first_state
from atoll.wire.encoding import Encoding
from atoll.wire.privacy_terms import PrivacyTerms, PrivacyUnit
from atoll.wire.statistics_query import NoisedStatistics, StatisticsQuery
from tests.wire.test_privacy_terms import TERMS

QUERY = StatisticsQuery(("age",))
MODEL = model_of(first_state(QUERY))
TASK = make_task(kind=TaskKind.STATISTICS, statistics=QUERY)


class Ward(Participant):
    def __init__(self, ages: Any) -> None:
        self.ages = ages

    def table(self) -> dict[str, Any]:
        return {"age": self.ages}


def test_an_answer_is_an_update_of_weight_1_that_leaves_the_figures_alone() -> None:
    update = answer(Ward(np.arange(12.0)), MODEL, TASK)
    assert update.weight == 1
    assert {name for name, array in update.tensors.items() if np.any(array)} == {"answer"}
    assert update.tensors["answer"][:4].tolist() == [12, 0, 12, 0]  # rows of the table, rows with a value, as limbs


def test_a_participant_without_a_table_declines() -> None:
    assert "gives no table" in (objection_of(Participant(), TASK) or "")
    assert objection_of(Ward([]), TASK) is None
    assert objection_of(Participant(), make_task()) is None


@pytest.mark.parametrize(
    ("query", "objection"),
    [
        (StatisticsQuery(("age",), min_rows=1), "min_rows is 1; this participant answers from 5"),
        (StatisticsQuery(("age",), min_participants=1), "min_participants is 1; this participant answers from 3"),
    ],
)
def test_a_participant_declines_cells_that_are_too_small_for_it(query: StatisticsQuery, objection: str) -> None:
    class Open(Ward):
        min_cell_rows = 1
        min_participants = 1

    task = make_task(kind=TaskKind.STATISTICS, statistics=query)
    assert objection in (objection_of(Ward([]), task) or "")
    assert objection_of(Open([]), task) is None


NOISED = replace(QUERY, noised=NoisedStatistics(((0.0, 120.0),), 20))
ROWS = replace(TERMS, unit=PrivacyUnit.ROW, noise_multiplier=4.0, clip_norm=2.0)


@pytest.mark.parametrize(
    ("query", "terms", "objection"),
    [
        (NOISED, ROWS, None),
        (NOISED, None, "the server sent only one of them"),
        (QUERY, ROWS, "the server sent only one of them"),
        (NOISED, replace(ROWS, noise_multiplier=2.4), "the noise on a count is 4.8 rows; this participant answers"),
        (replace(NOISED, min_rows=1), ROWS, None),
        (replace(NOISED, min_participants=1), ROWS, "min_participants is 1"),
    ],
)
def test_noise_and_terms_go_together_and_hide_small_cells(
    query: StatisticsQuery, terms: PrivacyTerms | None, objection: str | None
) -> None:
    found = objection_of(Ward([]), make_task(kind=TaskKind.STATISTICS, statistics=query, privacy=terms))
    assert found is None if objection is None else objection in (found or "")


def test_where_rows_are_protected_an_answer_is_sent_whole_and_a_table_has_its_most_rows() -> None:
    model = model_of(first_state(NOISED))
    task = make_task(kind=TaskKind.STATISTICS, statistics=NOISED, privacy=ROWS, max_abs=2.0**20)
    sent = Protection().outgoing(model, answer(Ward(np.full(20, 60.0)), model, task), task, 1)
    values = np.empty(model.layout.size)
    sent.shard.source.read(sent.shard.ranges[0], Encoding.FLOAT64, values)
    assert values[2] == 20  # above the norm of a row
    with pytest.raises(PublicError, match="more rows than the run accepts"):
        answer(Ward(np.arange(21.0)), model, task)


def test_terms_for_rows_are_for_statistics_alone() -> None:
    assert "this task asks for something else" in (Protection().objection(make_task(privacy=ROWS)) or "")
    assert Protection().objection(make_task(kind=TaskKind.STATISTICS, privacy=ROWS)) is None


def test_a_participant_of_a_table_alone_declines_to_train() -> None:
    assert "trains nothing" in (objection_of(Ward([]), make_task()) or "")


@pytest.mark.parametrize(
    ("ages", "text"),
    [
        (np.arange(9.0), "fewer rows than this participant's min_rows"),
        (["Jane Doe"] * 12, "column 'age' has a value of type str_ that is no number"),
        ([1] * 11 + [10**400], "column 'age' has a value that is infinite"),
        ([1] * 11 + [[2, 3]], "column 'age' has rows of different shapes"),
        (np.full(12, 1 + 2j), "column 'age' has a value of type complex128 that is no number"),
        (np.full(12, np.inf), "column 'age' has a value that is infinite"),
    ],
)
def test_a_table_that_cannot_answer_is_reported_without_its_values(ages: Any, text: str) -> None:
    with pytest.raises(PublicError) as raised:
        answer(Ward(ages), MODEL, TASK)
    assert text in raised.value.public_text
    assert "Jane" not in raised.value.public_text


def test_another_model_is_refused() -> None:
    with pytest.raises(UpdateError, match="not that of its query"):
        answer(Ward(np.arange(12.0)), model_of({"w": np.zeros(3)}), TASK)


def test_a_participant_that_sends_noised_updates_alone_declines(tmp_path: Path) -> None:
    local = LocalPrivacy(Gaussian(1.0, 1e-6, clip_norm=0.5), Limit(10.0, 1e-5))
    assert "noise would ruin the sums" in (LocalProtection(local, tmp_path).objection(TASK) or "")
