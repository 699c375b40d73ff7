"""A round in rank 0's session is counted, however often the server asks for chunks again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, cast

import pytest

from atoll.client import RefusedError
from atoll.client._session.invitation import Input, Invitation
from atoll.client._session.work import INCOMPLETE
from atoll.client._state.usage import UsageLog
from atoll.client._transfer.blob_cache import BlobCache
from atoll.client.testing import make_task
from atoll.datacenter.federation.journal import Journal
from atoll.datacenter.federation.memory_check import MemoryCheck
from atoll.datacenter.federation.session_thread import MAX_REPAIRS, Delivery, Handover, SiloParticipant, SiloWork
from atoll.wire.chunks import ChunkHeader, ElementRange
from atoll.wire.encoding import Encoding
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import transfer_pb2
from tests.patience import WAIT_S

if TYPE_CHECKING:
    from atoll.client._transfer.task_transfers import TaskTransfers

FETCHED, ELEMENTS = 1000, 6
SENT = 4 * ELEMENTS
LAYOUT = Layout((TensorSpec("weight", (ELEMENTS,), Dtype.FLOAT32),))
HEADER = ChunkHeader(ElementRange.run(0, ELEMENTS), Encoding.FLOAT32, bytes(32))
DELIVERY = Delivery([HEADER], 1, {}, FETCHED, (0.0, 0.0, 0.0), partial=False)


class Endpoint:
    """An address without calls."""

    address = "127.0.0.1:1"


class Calls:
    """Calls of a link."""

    endpoint = Endpoint()


class Forgetful:
    """A link to a server that lacks chunks at each of the first reports."""

    calls, chunk_bytes = Calls(), 1 << 20

    def __init__(self, lacking: int) -> None:
        self._lacking = lacking

    def report(self, _: transfer_pb2.ReportRequest, __: int) -> transfer_pb2.ReportResponse:
        self._lacking -= 1
        if self._lacking >= 0:
            raise RefusedError("not all is here", ErrorDetail(INCOMPLETE, Fault.SERVER, "not all is here"))
        return transfer_pb2.ReportResponse(disposition=transfer_pb2.ReportResponse.DISPOSITION_COUNTED)


@pytest.mark.parametrize("lacking", [0, 1, MAX_REPAIRS])
def test_what_was_fetched_counts_once_and_what_is_sent_each_time(lacking: int, tmp_path: Path) -> None:
    usage, rounds = UsageLog(tmp_path), Queue[Handover | None]()
    invitation = Invitation(make_task(), (Input("model", LAYOUT, "0" * 64),))
    link = cast("TaskTransfers", Forgetful(lacking))
    work = SiloWork(
        SiloParticipant(1),
        invitation,
        link,
        BlobCache(tmp_path, keep=1),
        usage,
        lambda _: None,
        rounds=rounds,
        journal=Journal(None),
    )
    with ThreadPoolExecutor(1) as session:
        reported = session.submit(work.perform)
        handover = rounds.get(timeout=WAIT_S)
        assert handover is not None
        answers = []
        for _ in range(lacking + 1):
            handover.delivered.put(DELIVERY)
            answers.append(handover.answer())
        assert reported.result(WAIT_S).disposition == "counted"
    assert answers == [INCOMPLETE] * lacking + ["counted"]
    assert usage.spent().bytes == FETCHED + (lacking + 1) * SENT


def test_a_silo_declines_runs_that_freeze_tensors() -> None:
    silo = SiloParticipant(5)
    assert silo.objection(make_task()) is None
    why = silo.objection(make_task(frozen=("embed.*",)))
    assert why is not None
    assert "freezes embed.*" in why


def test_a_silo_declines_rounds_whose_model_has_no_room() -> None:
    memory_check = MemoryCheck(needed_bytes=12e9, memory_bytes=8 << 30, task=None, ranks=4, ranks_per_node=4)
    why = SiloParticipant(5, memory_check=memory_check).objection(make_task())
    assert why is not None
    assert why.startswith("the model does not fit this silo: parameters and optimiser states take 11.2 GiB on a rank")
    assert SiloParticipant(5, memory_check=replace(memory_check, memory_bytes=16 << 30)).objection(make_task()) is None
