import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from atoll.server.aggregation import MergedSum, PartialSum
from atoll.server.errors import CorruptDataError, NotFoundError, UnavailableError
from atoll.server.identity import RevokedError, Role
from atoll.server.ingest import node_pool
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.local_node import LocalNode
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from tests.patience import WAIT_S
from tests.server.ingest.uploads import ALICE, BOB, SIZE, chunks_of, committed, flip, fold_item, ref, sum_key, values_of
from tests.server.ingest.worker_calls import Calls

CAROL = "pcccccccccccc"


class Rig:
    """Two workers and the coordinator's own node over one spool."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.spool = Spool(folder / "spool")
        self.files = folder / "partials"
        self.files.mkdir()
        self.calls = {name: Calls(IngestNode(name, self.spool)) for name in ("worker-0", "worker-1")}
        self.main = IngestNode("main", self.spool)
        self.pool = NodePool()
        self.pool.add(LocalNode(self.main, executor))
        for name, calls in self.calls.items():
            self.pool.add(FileNode(name, calls, self.files, executor))
        self.items = {
            who: fold_item(ref(who), committed(self.spool, ref(who), chunks_of(values_of(seed))).digest)
            for seed, who in enumerate((ALICE, BOB, CAROL))
        }

    @property
    def shared(self) -> list[tuple[str, FoldItem]]:
        """Each update with the node that received it."""
        return list(zip(("worker-0", "worker-1", "main"), self.items.values(), strict=True))

    async def fold(self, node: str, item: FoldItem) -> None:
        """Fold as a run does when an update has arrived."""
        if due := self.pool.due(sum_key(), node, item):
            await self.pool.fold(sum_key(), node, due)

    async def merged(self) -> bytes:
        async with self.pool.partials(sum_key(), self.shared) as parts:
            return MergedSum(parts).sum_block(0, SIZE).tobytes()

    def expected(self) -> bytes:
        """The same sum by a single node."""
        alone = IngestNode("one", self.spool).partial(sum_key(), list(self.items.values()))
        return alone.sum_block(0, SIZE).tobytes()


@pytest.fixture
def small_rig(tmp_path: Path) -> Any:
    with ThreadPoolExecutor(3) as executor:
        yield Rig(tmp_path, executor)


@pytest.fixture
def rig(small_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A rig whose updates count as large."""
    monkeypatch.setattr(node_pool, "SMALL_ELEMENTS", 0)
    return small_rig


async def test_partial_sums_are_one_sum(rig: Rig) -> None:
    for node, item in rig.shared:
        await rig.fold(node, item)
    assert await rig.merged() == rig.expected()
    assert list(rig.files.iterdir()) == []


async def test_what_a_lost_worker_received_is_folded_elsewhere(rig: Rig) -> None:
    await rig.fold("worker-1", rig.items[BOB])
    rig.pool.remove("worker-1")
    await rig.fold("worker-1", rig.items[BOB])
    assert await rig.merged() == rig.expected()


async def test_a_worker_that_returns_empty_counts_nothing_twice(rig: Rig) -> None:
    for node, item in rig.shared:
        await rig.fold(node, item)
    rig.pool.remove("worker-1")
    await rig.fold("worker-1", rig.items[BOB])  # folded by another meanwhile
    rig.calls["worker-1"] = Calls(IngestNode("worker-1", rig.spool))
    with ThreadPoolExecutor(1) as executor:
        rig.pool.add(FileNode("worker-1", rig.calls["worker-1"], rig.files, executor))
        assert await rig.merged() == rig.expected()


async def test_one_that_fails_leaves_no_files_of_the_others(rig: Rig) -> None:
    rig.calls["worker-1"].gone = True
    with pytest.raises(UnavailableError, match="worker-1"):
        await rig.merged()
    assert list(rig.files.iterdir()) == []
    rig.calls["worker-1"].gone = False
    assert await rig.merged() == rig.expected()


async def test_a_lost_update_is_reported_as_lost(rig: Rig) -> None:
    rig.spool.drop_run(rig.items[ALICE].run)
    with pytest.raises(NotFoundError):
        await rig.merged()


async def test_a_revocation_reaches_all_connected_workers_if_one_is_away(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.calls["worker-0"].gone = True
    seen = Caller(Role.PARTICIPANT, ALICE), RevokedError.of(ALICE)
    await rig.pool.end_calls(*seen)
    assert "worker-0 learns a moment later" in caplog.text
    assert rig.calls["worker-1"].ended == [seen]


async def test_dropping_reaches_all_connected_workers_if_one_is_away(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.merged()
    rig.calls["worker-0"].gone = True
    await rig.pool.drop(sum_key().run, 0, 0)
    assert "worker-0 keeps old sums for now" in caplog.text
    assert (rig.calls["worker-1"].node._sums, rig.main._sums) == ({}, {})
    rig.calls["worker-0"].gone = False
    await rig.pool.drop_run(sum_key().run)
    assert rig.calls["worker-0"].node._sums == {}


async def test_without_any_node_one_waits() -> None:
    with pytest.raises(UnavailableError, match="no ingest node") as caught:
        await NodePool().fold(sum_key(), "main", [FoldItem("r", 0, 0, ALICE, "0" * 64, 1)])
    assert caught.value.detail.retry_after_s is not None


async def test_all_nodes_work_at_the_same_time(rig: Rig) -> None:
    """Each waits until the other has begun."""
    both = asyncio.Barrier(2)

    class Waiting(FileNode):
        @contextlib.asynccontextmanager
        async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
            await both.wait()
            async with super().partial(key, items) as found:
                yield found

    with ThreadPoolExecutor(1) as executor:
        for name, calls in rig.calls.items():
            rig.pool.add(Waiting(name, calls, rig.files, executor))
        async with asyncio.timeout(WAIT_S):
            assert await rig.merged() == rig.expected()


class TestSmallUpdates:
    """Small updates are folded together, or with the sum."""

    @pytest.fixture(autouse=True)
    def folded(self, monkeypatch: pytest.MonkeyPatch) -> list[list[FoldItem]]:
        """The updates in each call; two suffice for a call."""
        calls: list[list[FoldItem]] = []
        fold = IngestNode.fold

        def counted(node: IngestNode, key: SumKey, items: Sequence[FoldItem]) -> None:
            calls.append(list(items))
            fold(node, key, items)

        monkeypatch.setattr(IngestNode, "fold", counted)
        monkeypatch.setattr(node_pool, "TOGETHER", 2)
        return calls

    async def test_enough_of_one_node_are_folded_in_one_call(
        self, small_rig: Rig, folded: list[list[FoldItem]]
    ) -> None:
        alice, bob, carol = small_rig.items.values()
        for node, item in (("main", alice), ("worker-0", bob), ("main", carol)):
            await small_rig.fold(node, item)
        assert folded == [[alice, carol]]

    async def test_the_sum_has_those_that_wait_and_forgets_them(
        self, small_rig: Rig, folded: list[list[FoldItem]]
    ) -> None:
        for node, item in small_rig.shared:
            await small_rig.fold(node, item)
        assert await small_rig.merged() == small_rig.expected()
        await small_rig.fold(*small_rig.shared[0])
        assert folded == []

    async def test_the_sum_finds_the_one_that_is_damaged(
        self, small_rig: Rig, folded: list[list[FoldItem]], caplog: pytest.LogCaptureFixture
    ) -> None:
        alice, bob, _ = small_rig.items.values()
        for data in small_rig.spool.root.glob(f"*/*/{ALICE}/*/*.data"):
            flip(data, 5)
        with caplog.at_level("INFO"):
            for item in (alice, bob):
                await small_rig.fold("main", item)
        assert folded == [[alice, bob]]
        assert "are left to the sum: spool.corrupt" in caplog.text
        assert ALICE not in caplog.text
        with pytest.raises(CorruptDataError):
            async with small_rig.pool.partials(sum_key(), [("main", alice), ("main", bob)]):
                pass

    @pytest.mark.parametrize("whole_run", [False, True])
    async def test_those_of_a_dropped_round_are_forgotten(
        self, small_rig: Rig, folded: list[list[FoldItem]], *, whole_run: bool
    ) -> None:
        alice, bob, _ = small_rig.items.values()
        key = sum_key()
        await small_rig.fold("main", alice)
        if whole_run:
            await small_rig.pool.drop_run(key.run)
        else:
            await small_rig.pool.drop(key.run, key.round, key.attempt)
        await small_rig.fold("main", bob)
        assert folded == []
