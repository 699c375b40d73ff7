"""A mistyped key of ``[training]`` is named in the log of the participant that reads the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.client._session.unread_settings import WatchedSettings
from atoll.server.jobs import Cohort, Job
from atoll.simulation import Federation
from tests.client._session.test_session import accepted
from tests.client.harness import AddOne

if TYPE_CHECKING:
    from tests.client.conftest import Start
    from tests.client.harness import Federation as Server

WARNING = "setting 'learning_rat' of [training] is not read, but 'learning_rate' is"


class Reading(AddOne):
    """Asks for a rate, with a default."""

    def fit(self, model: Model, task: Task) -> Update:
        task.settings.number("learning_rate", 0.1)
        return super().fit(model, task)


async def test_it_is_named_once_a_run(server: Server, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start(Reading())
    for number in range(2):
        server.invite(number, run="mistyped", settings={"learning_rat": 0.5, "later": 3})
        await accepted(server)
        await server.report()
    assert caplog.text.count("is not read") == 1
    assert f"{WARNING}: is it mistyped in the job?" in caplog.text


class Member(Participant):
    """Reads settings as ``Reading`` does."""

    def __init__(self, number: int) -> None:
        self.examples = number + 1

    def fit(self, model: Model, task: Task) -> Update:
        return Update({"w": model["w"] + task.settings.number("learning_rate", 0.1)}, weight=self.examples)


def test_a_simulation_names_it_once(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(rounds=2, cohort=Cohort(size=3), training={"learning_rat": 0.5})
    Federation(participants=Member, population=3).run(job, initial={"w": np.zeros(2, np.float32)})
    assert caplog.text.count(WARNING) == 1


def test_a_name_that_was_asked_for_any_way_is_read() -> None:
    settings = WatchedSettings({"a": 1, "b": 2, "c": 3, "d": True, "e": "text"})
    settings.number("a"), settings.integer("b"), settings["c"], settings.flag("d", True), settings.get("e")
    assert settings.asked == set("abcde")
    assert "f" not in settings
    assert "f" in settings.asked
    assert dict(WatchedSettings({"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("given", "asked", "named"),
    [
        ("epoch", "epochs", True),
        ("batchsize", "batch_size", True),
        ("LR", "lr", True),
        ("warmup", "lr", False),
        ("momentum", "momentum", False),
    ],
)
def test_only_a_similar_name_that_is_missing_makes_it_a_mistake(given: str, asked: str, *, named: bool) -> None:
    settings = WatchedSettings({given: 1.0})
    settings.get(asked, 2.0)
    assert settings.mistyped() == ({given: asked} if named else {})


@pytest.mark.parametrize(
    ("unread", "read", "named"),
    [("epoch", "epochs", True), ("decay_from", "decay", False), ("batch_size_1", "batch_size_2", False)],
)
def test_an_unread_setting_is_a_mistake_only_if_its_name_resembles_one_that_was_read(
    unread: str, read: str, *, named: bool
) -> None:
    settings = WatchedSettings({unread: 1.0, read: 3})
    settings.get(read)
    assert settings.mistyped() == ({unread: read} if named else {})


def test_a_program_that_takes_all_of_them_has_read_them() -> None:
    settings = WatchedSettings({"learning_rat": 1.0})
    settings.get("learning_rate")
    dict(settings)
    assert settings.mistyped() == {}
