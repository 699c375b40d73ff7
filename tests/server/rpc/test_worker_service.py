import dataclasses
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from atoll.server.aggregation import AggregationError
from atoll.server.errors import CorruptDataError, NotFoundError, ServerError, StorageError, UnavailableError
from atoll.server.identity import RevokedError, Role
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode
from atoll.server.ingest.partial_file import PartialFile
from atoll.server.ingest.spool import Spool
from atoll.server.process.listeners import Port, make_server
from atoll.server.rpc import worker_service
from atoll.server.rpc.worker_service import WorkerCalls, WorkerService
from atoll.wire.v1.ingest_pb2_grpc import add_WorkerServiceServicer_to_server
from tests.server.ingest.uploads import (
    ALICE,
    BOB,
    SIZE,
    chunks_of,
    committed,
    digest_of,
    flip,
    fold_item,
    ref,
    sum_key,
    values_of,
    write,
)


@dataclass
class Setup:
    """A worker's node, and the coordinator's interface of it."""

    spool: Spool
    node: IngestNode
    calls: WorkerCalls
    ended: list[tuple[Caller, str]]

    def update(self, participant: str, seed: int) -> FoldItem:
        upload = ref(participant, seed)
        return fold_item(upload, committed(self.spool, upload, chunks_of(values_of(seed))).digest)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    spool = Spool(tmp_path / "spool")
    node = IngestNode("worker-0", spool)
    server = make_server(Port.INSIDE)
    ended: list[tuple[Caller, str]] = []

    def shut_out(caller: Caller, error: ServerError) -> None:
        ended.append((caller, str(error.detail)))

    with ThreadPoolExecutor(2) as executor:
        add_WorkerServiceServicer_to_server(WorkerService(node, executor, lambda: b"# figures\n", shut_out), server)
        server.add_insecure_port(f"unix:{tmp_path}/worker.sock")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/worker.sock") as channel:
            yield Setup(spool, node, WorkerCalls("worker-0", channel), ended)
        await server.stop(None)


async def test_a_sum_over_the_wire_is_the_node_s_own(setup: Setup, tmp_path: Path) -> None:
    items = [setup.update(ALICE, 1), setup.update(BOB, 2)]
    await setup.calls.fold(sum_key(), items[:1])
    await setup.calls.fold(sum_key(), items[:1])
    await setup.calls.write_partial(sum_key(), items, tmp_path / "sum.partial")
    found, own = PartialFile(tmp_path / "sum.partial"), setup.node.partial(sum_key(), items)
    assert (found.sum_block(0, SIZE) == own.sum_block(0, SIZE)).all()
    assert (found.updates, found.total_weight, found.grid) == (own.updates, own.total_weight, own.grid)


async def test_a_sum_over_a_part_of_the_model_is_asked_for_as_such(setup: Setup, tmp_path: Path) -> None:
    first, size = 300, 400
    key = dataclasses.replace(sum_key(size), first=first)
    items = []
    for participant, seed in ((ALICE, 1), (BOB, 2)):
        upload, chunks = ref(participant, seed), chunks_of(values_of(seed))[3:7]
        write(setup.spool, upload, chunks)
        items.append(fold_item(upload, commit_upload(setup.spool, upload, size, digest_of(chunks), first).digest))
    await setup.calls.fold(key, items[:1])
    await setup.calls.write_partial(key, items, tmp_path / "sum.partial")
    whole = setup.node.partial(sum_key(at=(1, 0)), [setup.update(ALICE, 1), setup.update(BOB, 2)])
    found = PartialFile(tmp_path / "sum.partial")
    assert (found.sum_block(0, size) == whole.sum_block(first, first + size)).all()
    await setup.calls.drop(key.run, 0, 0)
    again = dataclasses.replace(sum_key(size, at=(2, 0)), first=SIZE - size)  # in the same memory, over other elements
    with pytest.raises(AggregationError, match="the sum begins at element 600"):
        setup.node.fold(again, items)


async def test_dropped_memory_is_used_again(setup: Setup) -> None:
    own = setup.node.partial(sum_key(), [setup.update(ALICE, 1)])
    await setup.calls.drop(sum_key().run, 0, 0)
    assert setup.node.partial(sum_key(at=(1, 0)), []) is own
    await setup.calls.drop_run(sum_key().run)
    assert setup.node.partial(sum_key(at=(2, 0)), []) is not own


async def test_a_disk_that_fails_a_worker_is_told_apart_from_a_lost_worker(setup: Setup, tmp_path: Path) -> None:
    """A worker is retried for an hour, a disk without limit."""
    alice, bob = setup.update(ALICE, 1), setup.update(BOB, 2)
    with pytest.raises(StorageError, match="cannot be written"):
        await setup.calls.write_partial(sum_key(), [alice], tmp_path / "not there" / "sum.partial")
    setup.spool.root.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="cannot be reached"):
        await setup.calls.fold(sum_key(), [bob])


async def test_damaged_and_lost_uploads_are_told_apart_from_a_lost_worker(setup: Setup) -> None:
    alice, bob = setup.update(ALICE, 1), setup.update(BOB, 2)
    flip(next(setup.spool.folder(ref(BOB, 2)).glob("*.data")), 100)
    with pytest.raises(CorruptDataError):
        await setup.calls.fold(sum_key(), [bob])
    setup.spool.drop_run(alice.run)
    with pytest.raises(NotFoundError):
        await setup.calls.fold(sum_key(), [alice])


async def test_a_worker_that_is_gone_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_service, "WORK_S", 0.2)
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/nobody.sock") as channel:
        calls = WorkerCalls("worker-7", channel)
        with pytest.raises(UnavailableError, match="worker-7 does not answer"):
            await calls.fold(sum_key(), [])
        with pytest.raises(UnavailableError):
            await calls.drop_run("r")


async def test_a_large_cohort_fits_in_one_message(setup: Setup, tmp_path: Path) -> None:
    """Its items exceed the 4 MiB that gRPC accepts by default."""
    ghost = FoldItem(sum_key().run, 0, 0, ALICE, "0" * 64, 1)
    with pytest.raises(NotFoundError):
        await setup.calls.write_partial(sum_key(), [ghost] * 50_000, tmp_path / "sum.partial")


async def test_it_is_told_of_a_revocation(setup: Setup) -> None:
    caller, error = Caller(Role.PARTICIPANT, ALICE), RevokedError.of(ALICE, "lost")
    await setup.calls.end_calls(caller, error)
    assert setup.ended == [(caller, str(error.detail))]
