"""Work for a disconnected gateway: sums wait for it, then leave it out; no other node is asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

import pytest

from atoll.server.aggregation import Accumulator, Grid, PartialSum
from atoll.server.errors import NotFoundError, ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.gateway_nodes import GATEWAY, SLOW, SLOW_S, STANDBY
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_pool import NodePool

KEY = SumKey("r1", 0, 0, 1 << 14, Grid(20, 1.0, 0, 10))
ITEM = FoldItem("r1", 0, 0, "p1", "d", 1)
NAME = GATEWAY + "pa"
FOLD = ("fold", "r1", 1)


class Node:
    """Records its calls and their arguments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[object] = []
        self.fails: ServerError | None = None

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        self.asked.append(("fold", key.run, len(items)))
        self._fail()

    @contextlib.asynccontextmanager
    async def partial(self, key: SumKey, items: Sequence[FoldItem]) -> AsyncIterator[PartialSum]:
        self.asked.append(("partial", key.run, len(items)))
        self._fail()
        yield Accumulator(key.elements, key.grid)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        self.asked.append(("drop", run, round_number, attempt))

    async def drop_run(self, run: str) -> None:
        self.asked.append(("drop run", run))

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        self.asked.append(("end", caller, error))

    async def drop_uploads(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        self.asked.append((run, through, set(keep)))

    async def norms(self, items: Sequence[FoldItem]) -> list[float]:
        self.asked.append(("norms", len(items)))
        self._fail()
        return [0.5] * len(items)

    async def flaw(self, item: FoldItem) -> str:
        return f"torn {item.digest}"


class Rig:
    """A pool with its own node and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pool = NodePool(away_s=60.0, clock=lambda: self.now)
        self.main = Node("main")
        self.pool.add(self.main)

    async def summed(self, wait_until: float = 0.0) -> None:
        async with self.pool.partials(KEY, [(NAME, ITEM)], wait_until):
            pass


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_orders_for_a_gateway_go_to_no_other_node(rig: Rig) -> None:
    gateway = Node(NAME)
    rig.pool.add_gateway(gateway)
    await rig.pool.fold(KEY, NAME, [ITEM])
    await rig.summed()
    await rig.pool.drop_uploads("r1", (2, 0), {(1, 0, "p1")})
    assert gateway.asked == [FOLD, ("partial", "r1", 1), ("r1", (2, 0), {(1, 0, "p1")})]
    assert await rig.pool.gateways.flaw(NAME, ITEM) == "torn d"
    assert await rig.pool.gateways.flaw("main", ITEM) is None
    assert rig.main.asked == []


async def test_a_sum_waits_from_when_it_left_and_to_the_deadline(rig: Rig) -> None:
    gateway = Node(NAME)
    rig.pool.add_gateway(gateway)
    rig.pool.remove_gateway(gateway)
    rig.now += 59.0
    with pytest.raises(UnavailableError, match="aggregator pa is not connected"):
        await rig.summed()
    rig.now += 2.0
    with pytest.raises(UnavailableError):
        await rig.summed(wait_until=rig.now + 1.0)
    with pytest.raises(UnavailableError):
        await rig.pool.gateways.flaw(NAME, ITEM, rig.now + 1.0)
    with pytest.raises(NotFoundError, match="not connected, and it has the update"):
        await rig.summed()
    assert "not connected, and it has the update" in str(await rig.pool.gateways.flaw(NAME, ITEM))
    assert rig.main.asked == []


async def test_the_wait_for_a_gateway_that_never_connected_begins_with_the_first_request(rig: Rig) -> None:
    with pytest.raises(UnavailableError):
        await rig.summed()
    rig.now += 61.0
    with pytest.raises(NotFoundError):
        await rig.summed()


async def test_a_fold_waits_however_long(rig: Rig) -> None:
    with pytest.raises(UnavailableError):
        await rig.pool.fold(KEY, NAME, [ITEM])
    rig.now += 1000.0
    with pytest.raises(UnavailableError):
        await rig.pool.fold(KEY, NAME, [ITEM])


async def test_after_the_deadline_a_gateway_that_does_nothing_is_left_out(rig: Rig) -> None:
    gateway = Node(NAME)
    gateway.fails = UnavailableError(SLOW, "it did not answer", retry_after_s=1.0)
    rig.pool.add_gateway(gateway)
    with pytest.raises(UnavailableError, match="did not answer"):
        await rig.summed()
    asked = list(gateway.asked)
    with pytest.raises(UnavailableError, match="aggregator pa does not do its work"):
        await rig.summed(wait_until=rig.now + 1.0)
    with pytest.raises(UnavailableError, match="aggregator pa does not do its work"):
        await rig.pool.fold(KEY, NAME, [ITEM])
    with pytest.raises(NotFoundError, match="does not do its work, and it has the update"):
        await rig.summed()
    assert "does not do its work" in str(await rig.pool.gateways.flaw(NAME, ITEM))
    assert gateway.asked == asked, "it is left in peace meanwhile"
    gateway.fails = None
    rig.now += SLOW_S
    await rig.summed()
    assert gateway.asked == [*asked, ("partial", "r1", 1)]


async def test_a_standby_that_does_nothing_is_replaced(rig: Rig) -> None:
    standby = Node(STANDBY + "sa")
    standby.fails = UnavailableError(SLOW, "it did not answer", retry_after_s=1.0)
    rig.pool.add_gateway(standby)
    with pytest.raises(UnavailableError):
        await rig.pool.fold(KEY, standby.name, [ITEM])
    await rig.pool.fold(KEY, standby.name, [ITEM])
    assert rig.main.asked == [FOLD]


async def test_norms_are_asked_of_aggregators_alone(rig: Rig) -> None:
    gateway, standby = Node(NAME), Node(STANDBY + "sa")
    rig.pool.add_gateway(gateway)
    rig.pool.add_gateway(standby)
    other = FoldItem("r1", 0, 0, "p2", "d", 1)
    items = [(NAME, ITEM), ("main", other), (standby.name, other)]
    assert await rig.pool.gateways.norms(items) == {ITEM.update_id: 0.5}
    assert (gateway.asked, standby.asked) == ([("norms", 1)], [])
    rig.pool.remove_gateway(gateway)
    rig.now += 61.0
    with pytest.raises(NotFoundError, match="not connected"):
        await rig.pool.gateways.norms(items)


async def test_the_late_end_of_an_older_connection_changes_nothing(rig: Rig) -> None:
    older, newer = Node(NAME), Node(NAME)
    rig.pool.add_gateway(older)
    rig.pool.add_gateway(newer)
    rig.pool.remove_gateway(older)
    await rig.pool.fold(KEY, NAME, [ITEM])
    assert newer.asked == [FOLD]


async def test_it_does_not_work_for_a_node_that_is_gone(rig: Rig) -> None:
    gateway = Node(NAME)
    rig.pool.add_gateway(gateway)
    await rig.pool.fold(KEY, "worker-1", [ITEM])
    assert (rig.main.asked, gateway.asked) == ([FOLD], [])
    rig.pool.remove("main")
    with pytest.raises(UnavailableError, match="no ingest node is running"):
        await rig.pool.fold(KEY, "worker-1", [ITEM])
