"""Errors in a participant's code: the server never gets a text that may quote its data."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from atoll.client import (
    Decision,
    Limits,
    Model,
    Policy,
    PublicError,
    RefusedError,
    Task,
    TrainerError,
    UnreachableError,
    Update,
    UpdateError,
)
from atoll.client.errors import text_for_server
from atoll.client.events import Failed, Invited, Stopped
from atoll.wire.privacy_terms import terms_to_proto
from atoll.wire.v1 import participation_pb2 as part
from tests.client._session.test_session import accepted
from tests.client.conftest import Start
from tests.client.harness import MODEL, AddOne, Federation, Gated
from tests.wire.test_privacy_terms import TERMS

PATIENT = "Jane Doe, HIV+"
FAILED = part.TaskReply.VERDICT_FAILED


class Careless(AddOne):
    """Its errors quote its data."""

    def __init__(self, result: BaseException | Update) -> None:
        super().__init__()
        self._result = result

    def fit(self, model: Model, task: Task) -> Update:
        super().fit(model, task)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


STAYS = "(its text stays in the participant's log)"


@pytest.mark.parametrize(
    ("result", "heard"),
    [
        (ValueError(f"could not convert string to float: {PATIENT!r}"), f"fit raised ValueError {STAYS}"),
        (type(PATIENT, (Exception,), {})(PATIENT), f"fit raised an error {STAYS}"),
        (TrainerError(PATIENT), f"TrainerError {STAYS}"),
        (Update(weights=MODEL, weight=cast("int", PATIENT)), f"UpdateError {STAYS}"),
        (Update(weights=MODEL, weight=1, metrics={"age": cast("float", PATIENT)}), f"UpdateError {STAYS}"),
    ],
)
@pytest.mark.parametrize("private", [False, True])
async def test_only_the_type_of_an_error_is_sent(
    server: Federation,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    result: BaseException | Update,
    heard: str,
    *,
    private: bool,
) -> None:
    run = start(Careless(result), max_rounds=1)
    server.invite(privacy=terms_to_proto(TERMS) if private else None)
    await accepted(server)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (FAILED, heard)
    await run.finished()
    assert PATIENT in run.of(Failed)[0].reason, "the participant's own user sees it all"
    assert PATIENT in caplog.text, "and so does its log"


async def test_a_text_that_is_meant_for_the_operator_is_sent(server: Federation, start: Start) -> None:
    start(Careless(PublicError("no visits in the month that the job asks for")))
    server.invite()
    await accepted(server)
    assert (await server.reply()).reason == "no visits in the month that the job asks for"


async def test_a_setting_that_is_missing_is_named(server: Federation, start: Start) -> None:
    class Asking(AddOne):
        def fit(self, model: Model, task: Task) -> Update:
            task.settings.number("lr")
            return super().fit(model, task)

    start(Asking())
    server.invite()
    await accepted(server)
    assert (await server.reply()).reason.startswith("fit raised SettingError: the task has no setting 'lr'")


async def test_the_text_of_an_error_in_a_policys_hook_stays(server: Federation, start: Start) -> None:
    def hook(task: Task) -> Decision:
        raise LookupError(f"{PATIENT} has {task.run_name}")

    start(AddOne(), policy=Policy(hook=hook))
    server.invite()
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (FAILED, f"LookupError {STAYS}")


async def test_metrics_whose_names_the_policy_does_not_allow_stay(server: Federation, start: Start) -> None:
    update = Update(weights=MODEL, weight=1, metrics={"loss": 0.5, "recall/HIV positive": 0.1})
    start(Careless(update), policy=Policy(metrics=("loss", "accuracy*")))
    server.invite()
    await accepted(server)
    assert dict((await server.report()).metrics) == {"loss": 0.5}


def test_the_servers_own_words_go_back_to_it() -> None:
    assert text_for_server(RefusedError("the round is full"), "type") == "RefusedError: the round is full"
    assert text_for_server(UnreachableError("no answer"), "type") == "UnreachableError: no answer"
    assert text_for_server(UpdateError(PATIENT), "type") == f"UpdateError {STAYS}"
    assert text_for_server(KeyError(PATIENT), "text") == f"KeyError: {PATIENT!r}"


async def test_a_model_that_the_disk_has_no_room_for_is_refused_by_the_name_of_the_setting(
    server: Federation, start: Start, tmp_path: Path
) -> None:
    start(AddOne(), policy=Policy(min_free_disk_bytes=1 << 62))
    server.invite()
    await accepted(server)
    assert (await server.reply()).reason.endswith("bytes of the disk free (min_free_disk_bytes)")
    assert not server.download_starts
    assert not list((tmp_path / "state" / "blobs").iterdir())


def test_by_default_no_server_fills_a_disk() -> None:
    policy, limits = Policy(), Limits()
    assert policy.max_model_bytes * (limits.cached_models + 1) <= 24 << 30
    assert policy.min_free_disk_bytes >= 1 << 30


async def test_a_servers_words_are_made_printable_as_they_come(server: Federation, start: Start) -> None:
    gated = Gated()
    run = start(gated)
    server.invite(run_name="demo\x1b[2J")
    await accepted(server)
    (invited,) = await run.saw(Invited)
    assert invited.run_name == r"demo\x1b[2J"
    server.stop(reason="enough\r\nround 9: reported\u202e")
    (stopped,) = await run.saw(Stopped)
    assert stopped.reason == r"enough\r\nround 9: reported\u202e"
