"""Simulations whose participants are trained together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from atoll.client import Model, Task, Update
from atoll.simulation import Cohort, Evaluation, Federation, Job, ParticipantError, SetupError, Straggler
from tests.client.test_torch_batched import participant, travelled
from tests.simulation.test_federation import MODEL, Stepping


class Together(Stepping):
    """Records which participants are trained together; each steps as it does alone."""

    calls: ClassVar[list[list[int]]] = []

    @classmethod
    def fit_together(cls, participants: Sequence[Self], model: Model, tasks: Sequence[Task]) -> list[Update]:
        cls.calls.append([one.number for one in participants])
        if cls.calls[-1][0] == 99:
            raise ZeroDivisionError("together")
        return [one.fit(model, task) for one, task in zip(participants, tasks, strict=True)]


def played(participants: Any = Together, batched: int = 4, workers: int = 0, **options: Any) -> str:
    job = Job(rounds=2, cohort=Cohort(size=6, seed=5), straggler=Straggler(), evaluation=Evaluation(every=1))
    Together.calls.clear()
    federation = Federation(participants=participants, population=10, batched=batched)
    return federation.run(job, initial=MODEL, workers=workers, **options).digest


def test_tasks_of_a_round_are_trained_so_many_at_a_time() -> None:
    alone = played(batched=1)
    assert Together.calls == []
    assert played(strict=True) == alone
    assert [len(call) for call in Together.calls] == [4, 2, 4, 2]


def test_an_error_of_the_call_is_each_members_failure() -> None:
    def make(number: int) -> Together:
        made = Together(number)
        made.number = 99
        return made

    with pytest.raises(ParticipantError, match=r"failed in round 1:(.|\n)*ZeroDivisionError: together"):
        played(make, strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batched": 0}, "batched = 0: give 1, for each alone, to keep = 4096"),
        ({"workers": 2}, "batched = 4 is for one process: give workers = 0, not 2"),
        ({"participants": Stepping}, "participants are Stepping, which cannot be trained together; derive"),
    ],
)
def test_what_cannot_be_trained_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        played(**options)


def test_small_models_of_torch_participants_are_trained_together() -> None:
    """Another order of sums is the only difference."""
    job = Job(rounds=2, seed=3, cohort=Cohort(size=4, seed=5))
    models = [
        Federation(participants=participant, population=4, batched=batched).run(job, initial=travelled()).model
        for batched in (1, 3)
    ]
    for name, values in models[0].items():
        np.testing.assert_allclose(models[1][name], values, 1e-4, 1e-5)


def test_a_participant_that_cannot_be_made_is_that_members_failure() -> None:
    def make(number: int) -> Together:
        if number == 2:
            raise OSError("no file for 2")
        return Together(number)

    job = Job(rounds=1, cohort=Cohort(size=6, quorum=5))
    for batched in (1, 4):
        federation = Federation(participants=make, population=6, batched=batched, examples=range(1, 7))
        assert federation.run(job, initial=MODEL).history[0].reported == 5


def test_too_few_updates_of_a_call_are_refused() -> None:
    class Short(Together):
        @classmethod
        def fit_together(cls, participants: Sequence[Self], model: Model, tasks: Sequence[Task]) -> list[Update]:
            return super().fit_together(participants, model, tasks)[1:]

    with pytest.raises(SetupError, match=r"Short.fit_together returned 3 updates for 4 participants; return one"):
        played(Short)
