"""A gateway's commits are checked again, because tables and terminals show them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.bound_coordinator import BoundCoordinator
from atoll.server.gateway.host.driving import Driving
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.ingest.coordinator_api import Commit, Disposition, ReportReceipt
from atoll.wire.v1 import transfer_pb2

UPDATE: dict[str, Any] = {"upload_id": "0" * 32, "digest": "ab" * 32, "weight": 10}


@dataclass
class Recorder:
    """Notes commits; any participant is bound."""

    commits: list[Commit] = field(default_factory=list)

    async def check(self, gateway: str, participant: str) -> None:
        """Refuse nothing."""

    async def commit(self, commit: Commit) -> ReportReceipt:
        self.commits.append(commit)
        return ReportReceipt(Disposition.COUNTED, commit.report.digest)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def bound(recorder: Recorder) -> BoundCoordinator:
    return BoundCoordinator(cast("Driving", recorder), cast("Bindings", recorder), Gateway("north"))


def commit_of(report: dict[str, Any], **fields: Any) -> Commit:
    return replace(Commit("p1", transfer_pb2.ReportRequest(**(UPDATE | report)), "main"), **fields)


@pytest.mark.parametrize(
    ("report", "fields"),
    [
        ({}, {"payload_bytes": 2**64 - 1}),
        ({}, {"norm": float("nan")}),
        ({}, {"norm": -1.0}),
        ({}, {"upload_at": float("inf")}),
        ({"digest": "x" * 1000}, {}),
        ({"digest": "AB" * 32}, {}),
        ({"upload_id": "../../../etc"}, {}),
        ({"upload_id": "0" * 33}, {}),
    ],
)
async def test_what_no_table_holds_is_refused(
    bound: BoundCoordinator, recorder: Recorder, report: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await bound.commit(commit_of(report, **fields))
    assert caught.value.detail.code == "gateway.commit"
    assert recorder.commits == []


async def test_a_report_is_noted_as_received_by_this_gateway(bound: BoundCoordinator, recorder: Recorder) -> None:
    await bound.commit(commit_of({}))
    await bound.commit(commit_of({"upload_id": "", "digest": ""}))  # of an evaluation
    assert {commit.node for commit in recorder.commits} == {"gateway-north"}


async def test_the_reason_of_a_rejection_is_short_and_printable(bound: BoundCoordinator, recorder: Recorder) -> None:
    await bound.commit(commit_of({}, rejection="\x1b[2J" + "x" * 5000))
    (commit,) = recorder.commits
    assert commit.rejection.startswith("\\x1b[2J")
    assert len(commit.rejection) < 1100
