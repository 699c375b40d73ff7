"""Rank 0's journal: which update counted last, and how one in doubt is settled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from atoll.client import RoundKey, UnreachableError
from atoll.client.errors import RefusedError
from atoll.datacenter.errors import CheckpointError
from atoll.datacenter.federation.journal import NAME, Journal
from atoll.wire.v1 import participation_pb2, transfer_pb2

if TYPE_CHECKING:
    from atoll.client.silo import TaskTransfers

Response = transfer_pb2.ReportResponse
COUNTED = Response(disposition=Response.DISPOSITION_COUNTED)
CARRIED = Response(disposition=Response.DISPOSITION_CARRIED)
DROPPED = Response(disposition=Response.DISPOSITION_DROPPED)


class Answering:
    """Transfers whose reports get these answers."""

    def __init__(self, *answers: Response | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def report(self, request: transfer_pb2.ReportRequest) -> Response:
        self.asked.append(request.upload_id)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def transfers(self) -> TaskTransfers:
        return cast("TaskTransfers", self)


def key(number: int, attempt: int = 0, run: str = "r") -> RoundKey:
    return RoundKey(run, number, attempt)


def report(number: int, upload: str, attempt: int = 0) -> transfer_pb2.ReportRequest:
    at = participation_pb2.RoundKey(run="r", round=number, attempt=attempt)
    return transfer_pb2.ReportRequest(round=at, upload_id=upload, weight=7)


def counted(journal: Journal, number: int, upload: str, attempt: int = 0) -> None:
    journal.enter(report(number, upload, attempt))
    journal.answered(COUNTED)


@pytest.fixture(params=[True, False], ids=["kept", "in memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return Journal(tmp_path / NAME if request.param else None)


def test_errors_are_those_after_the_last_update_that_counted(journal: Journal) -> None:
    assert journal.errors_for(key(0)) == ""
    counted(journal, 0, "one")
    assert journal.errors_for(key(1)) == "one"
    for number, answer in enumerate((None, DROPPED)):
        journal.enter(report(1, f"refused {number}"))
        journal.answered(answer)
        assert journal.errors_for(key(2)) == "one"
    journal.enter(report(2, "two"))
    journal.answered(CARRIED)
    assert journal.errors_for(key(3)) == "two", "a later round will have it in its sum"


def test_a_round_that_begins_anew_includes_the_errors_before_its_first_attempt(journal: Journal) -> None:
    counted(journal, 0, "one")
    counted(journal, 1, "lost")
    assert journal.errors_for(key(1, attempt=1)) == "one"
    counted(journal, 1, "two", attempt=1)
    assert journal.errors_for(key(1, attempt=2)) == "one"
    assert journal.errors_for(key(2)) == "two"


def test_errors_of_one_run_are_not_sent_to_another(journal: Journal) -> None:
    counted(journal, 0, "one")
    assert journal.errors_for(key(1, run="other")) == ""


@pytest.mark.parametrize(
    ("answer", "expected"), [(COUNTED, "two"), (CARRIED, "two"), (DROPPED, "one"), (RefusedError("gone"), "one")]
)
@pytest.mark.parametrize("killed", [True, False])
def test_an_update_in_doubt_is_asked_about_once(
    tmp_path: Path, answer: Response | Exception, expected: str, *, killed: bool
) -> None:
    journal = Journal(tmp_path / NAME)
    counted(journal, 0, "one")
    journal.enter(report(1, "two"))
    if killed:
        journal = Journal(tmp_path / NAME)
    server = Answering(UnreachableError("away"), answer)
    with pytest.raises(UnreachableError):
        journal.settle(server.transfers)
    found = journal.settle(server.transfers)
    assert (found is None) == isinstance(answer, Exception)
    assert found is None or found[0].upload_id == "two"
    assert journal.settle(server.transfers) is None
    assert server.asked == ["two", "two"]
    assert journal.errors_for(key(2)) == Journal(tmp_path / NAME).errors_for(key(2)) == expected


@pytest.mark.parametrize("text", ["", "{}", '{"counted": {"x": 1}, "doubtful": null}', "[1]"])
def test_a_damaged_journal_is_an_error_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(CheckpointError, match=r"journal\.json cannot be read .*: restore it, or remove it"):
        Journal(tmp_path / NAME)
