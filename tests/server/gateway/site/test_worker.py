"""A gateway performs the server's orders on real uploads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.aggregation import PartialSum
from atoll.server.errors import ServerError, StorageError, UnavailableError
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.gateway.site.worker import OwnCalls, Worker
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.records import norm_of
from atoll.server.ingest.spool import Spool
from atoll.server.rpc.ingest_messages import fold_item_to_proto, fold_to_proto
from atoll.wire.v1 import gateway_pb2, ingest_pb2, participation_pb2
from tests.server.ingest.uploads import (
    ALICE,
    BOB,
    RUN,
    SIZE,
    chunks_of,
    committed,
    fold_item,
    ref,
    sum_key,
    values_of,
)

KEY = sum_key()


class Sent(PartialUpload):
    """Keeps the sums instead of sending them."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), cast("Any", None), lambda _: None)
        self.sums: dict[str, npt.NDArray[np.int64]] = {}
        self.fails = False

    async def send(self, name: str, partial: PartialSum) -> None:
        if self.fails:
            raise UnavailableError("gateway.link", "the line broke", retry_after_s=1.0)
        self.sums[name] = partial.sum_block(0, partial.size).copy()


class Rig:
    """A worker over a spool, and the calls that it was told to end."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.spool = Spool(folder / "spool")
        self.node = IngestNode("north", self.spool)
        self.upload = Sent()
        self.partials = folder / "partials"
        self.partials.mkdir()
        self.places: dict[str, str] = {}
        self.ended: list[tuple[Caller, str]] = []
        self.nodes = NodePool()
        self.nodes.add(FileNode("north", OwnCalls(self.node, executor), self.partials, executor))
        self.worker = Worker(
            node=self.node,
            nodes=self.nodes,
            node_of=lambda item: self.places.get(item.participant, ""),
            spool=self.spool,
            executor=executor,
            upload=self.upload,
            shut_out=self._end,
        )

    def _end(self, caller: Caller, error: ServerError) -> None:
        self.ended.append((caller, error.detail.message))

    def update(self, participant: str, seed: int, at: tuple[int, int] = (0, 0), run: str = RUN) -> FoldItem:
        upload = ref(participant, seed, at=at, run=run)
        return fold_item(upload, committed(self.spool, upload, chunks_of(values_of(seed))).digest)

    async def flaw(self, item: FoldItem) -> str:
        """What is wrong with an upload; empty if nothing is."""
        return (await self.do(flaw=gateway_pb2.FlawOrder(item=fold_item_to_proto(item)))).flaw

    async def do(self, **order: Any) -> gateway_pb2.OrderDone:
        return await self.worker.perform(gateway_pb2.WorkResponse(number=7, **order))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ThreadPoolExecutor(2) as executor:
        yield Rig(tmp_path, executor)


def partial(name: str, *items: FoldItem, key: SumKey = KEY) -> gateway_pb2.PartialOrder:
    return gateway_pb2.PartialOrder(name=name, sum=fold_to_proto(key, items))


async def test_each_node_folds_what_came_to_it(rig: Rig) -> None:
    """As in a standby with two workers, whose sums are sent as one."""
    folds: dict[str, IngestNode] = {}
    with ThreadPoolExecutor(2) as executor:
        for name in ("worker-0", "worker-1"):
            node = folds[name] = IngestNode(name, rig.spool)
            rig.nodes.add(FileNode(name, OwnCalls(node, executor), rig.partials, executor))
        alice, bob = rig.update(ALICE, 1), rig.update(BOB, 2)
        rig.places = {ALICE: "worker-0", BOB: "worker-1"}
        await rig.do(fold=fold_to_proto(KEY, [alice, bob]))
        assert [folds[name].steps for name in sorted(folds)] == [SIZE // 100] * 2
        assert not (await rig.do(partial=partial("both", alice, bob))).status
    assert (rig.upload.sums["both"] == rig.node.partial(KEY, [alice, bob]).sum_block(0, SIZE)).all()


async def test_a_sum_is_of_exactly_what_is_asked_for_and_leaves_no_file(rig: Rig) -> None:
    alice, bob = rig.update(ALICE, 1), rig.update(BOB, 2)
    await rig.do(fold=fold_to_proto(sum_key(), [alice, bob]))
    for name, items in (("both", (alice, bob)), ("one", (bob,))):
        assert not (await rig.do(partial=partial(name, *items))).status
        expected = rig.node.partial(sum_key(), items).sum_block(0, SIZE)
        assert (rig.upload.sums[name] == expected).all()
    assert list(rig.partials.iterdir()) == []


async def test_steps_grow_with_work_and_not_with_questions(rig: Rig) -> None:
    alice, bob = rig.update(ALICE, 1), rig.update(BOB, 2)
    orders: list[dict[str, Any]] = [{}, {}, *({"fold": fold_to_proto(sum_key(), [item])} for item in (alice, bob))]
    orders += [{"partial": partial("both", alice, bob)}, {}]
    steps = [(await rig.do(**order)).steps for order in orders]
    chunks = SIZE // 100
    assert steps == [0, 0, chunks + 1, 2 * chunks + 2, 2 * chunks + 4, 2 * chunks + 4]


async def test_the_error_of_an_order_is_its_answer(rig: Rig) -> None:
    gone = FoldItem(RUN, 0, 0, ALICE, "ab" * 32, 1)
    done = await rig.do(partial=partial("gone", gone))
    assert (done.number, done.status) == (7, grpc.StatusCode.NOT_FOUND.value[0])
    assert done.error.message
    assert (await rig.do(flaw=gateway_pb2.FlawOrder(item=fold_item_to_proto(gone)))).flaw
    alice = rig.update(ALICE, 1)
    assert not (await rig.do(flaw=gateway_pb2.FlawOrder(item=fold_item_to_proto(alice)))).flaw
    rig.upload.fails = True
    done = await rig.do(partial=partial("lost", alice))
    assert (done.status, done.error.message) == (grpc.StatusCode.UNAVAILABLE.value[0], "the line broke")
    assert list(rig.partials.iterdir()) == []
    done = await rig.do(end_calls=ingest_pb2.EndCallsRequest(role="king", name="p1"))
    assert done.status == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_norms_are_those_that_the_server_would_read(rig: Rig) -> None:
    alice, bob = rig.update(ALICE, 1), rig.update(BOB, 2)
    found = await rig.do(norms=gateway_pb2.NormsOrder(items=[fold_item_to_proto(one) for one in (bob, alice)]))
    expected = []
    for one in (bob, alice):
        with rig.spool.committed(one.run, one.round, one.attempt, one.participant, one.digest) as upload:
            expected.append(norm_of(upload.records))
    assert list(found.norms) == expected
    assert min(expected) > 0


async def test_what_a_later_round_will_count_outlives_a_drop(rig: Rig) -> None:
    carried, counted = rig.update(ALICE, 1), rig.update(BOB, 2)
    key = participation_pb2.RoundKey(run=RUN)
    await rig.do(drop=gateway_pb2.DropOrder(through=key, keep=[fold_item_to_proto(carried)]))
    later = sum_key(at=(1, 0))
    assert not (await rig.do(partial=partial("carried", carried, key=later))).status
    done = await rig.do(partial=partial("counted", counted, key=later))
    assert done.status == grpc.StatusCode.NOT_FOUND.value[0]


async def test_uploads_of_runs_that_ended_meanwhile_go(rig: Rig) -> None:
    alice = rig.update(ALICE, 1)
    await rig.worker.begin()
    await rig.do(keep=gateway_pb2.KeepOrder(runs=[RUN]))
    assert not await rig.flaw(alice)
    await rig.do(keep=gateway_pb2.KeepOrder(runs=["rzzzzzzzzzzzz"]))
    assert await rig.flaw(alice)


async def test_nothing_is_left_of_runs_that_ended_meanwhile(rig: Rig) -> None:
    """Also of a run whose last upload was removed before; a run that goes on keeps its folder."""
    rig.update(ALICE, 1)
    other, going_on = "rbbbbbbbbbbbb", "rcccccccccccc"
    for run in (other, going_on):
        rig.update(BOB, 2, run=run)
        rig.spool.drop_through(run, (0, 0), ())
    await rig.worker.begin()
    await rig.do(keep=gateway_pb2.KeepOrder(runs=[going_on]))
    assert rig.spool.runs_here() == [going_on]


async def test_uploads_that_came_after_the_list_of_runs_was_asked_for_stay(rig: Rig) -> None:
    """They are of a run that was submitted, or extended, when the server had made the list."""
    ended = rig.update(ALICE, 1)
    await rig.worker.begin()
    extended, submitted = rig.update(ALICE, 2, at=(1, 0)), rig.update(BOB, 3, run="rbbbbbbbbbbbb")
    await rig.do(keep=gateway_pb2.KeepOrder(runs=["rzzzzzzzzzzzz"]))
    assert [bool(await rig.flaw(one)) for one in (ended, extended, submitted)] == [True, False, False]


async def test_a_disk_that_refuses_is_an_error_that_the_link_tries_again_after(rig: Rig) -> None:
    shutil.rmtree(rig.spool.root)
    with pytest.raises(StorageError):
        await rig.worker.begin()


async def test_the_calls_of_a_revoked_participant_end_with_the_servers_words(rig: Rig) -> None:
    order = ingest_pb2.EndCallsRequest(role="participant", name=ALICE, message="it was revoked: left")
    assert not (await rig.do(end_calls=order)).status
    assert rig.ended == [(Caller(Role.PARTICIPANT, ALICE), "it was revoked: left")]
