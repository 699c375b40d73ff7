"""Ranks agree on a round through their store: a failure of one rank is a failure of all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from atoll.client import RoundKey
from atoll.client.control import TaskControl
from atoll.datacenter.federation import orders
from atoll.datacenter.federation.orders import Order, Orders, RoundError
from atoll.datacenter.mesh import World
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding
from tests.datacenter.federation.parts import LAYOUT
from tests.patience import WAIT_S

RANKS = 3


def order(number: int) -> Order:
    return Order(
        number=number,
        key=RoundKey("run", number, 2),
        layout=LAYOUT,
        blob="ab" * 32,
        content=b"\x00\xff",
        encoding=Encoding.INT8_BLOCK,
        max_abs=0.5,
        ranges=(ElementRange(3, 2, 5, 4),),
        remaining_s=12.5,
        upload_id="c" * 32,
        address="127.0.0.1:1",
        chunk_bytes=4096,
        inner_steps=500,
        clip_norm=0.25,
        traceparent="00-1",
        counted="d" * 32,
    )


@pytest.fixture(scope="module")
def meeting() -> Any:
    """The store of the ranks."""
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=WAIT_S))


@pytest.fixture
def store(meeting: Any, request: pytest.FixtureRequest) -> Any:
    """A prefix of this test in the store."""
    return PrefixStore(request.node.name, meeting)


@pytest.fixture
def ranks(store: Any) -> list[Orders]:
    """One connection per rank."""
    return [
        Orders(World(rank, RANKS, rank, torch.device("cpu")), store.clone(), lambda: False) for rank in range(RANKS)
    ]


@pytest.fixture
def together(ranks: list[Orders]) -> Iterator[Callable[[Callable[[int, Orders], Any]], list[Any]]]:
    """Run something on all ranks at once, and return each result, or the error of its round."""
    with ThreadPoolExecutor(RANKS) as threads:

        def run(work: Callable[[int, Orders], Any]) -> list[Any]:
            coming = [threads.submit(caught, work, rank, orders) for rank, orders in enumerate(ranks)]
            return [one.result(WAIT_S) for one in coming]

        yield run


def caught(work: Callable[[int, Orders], Any], rank: int, orders: Orders) -> Any:
    try:
        return work(rank, orders)
    except RoundError as error:
        return str(error), error.public


Together = Callable[[Callable[[int, Orders], Any]], list[Any]]


def deal(rank: int, orders: Orders, number: int) -> Order | None:
    """Return the order with this number on each rank."""
    if rank:
        return orders.take()
    orders.give(order(number))
    return order(number)


def test_an_order_arrives_as_it_was_given_and_so_does_the_end(together: Together) -> None:
    assert together(lambda rank, orders: deal(rank, orders, 1)) == [order(1)] * RANKS
    assert together(lambda rank, orders: deal(rank, orders, 2)) == [order(2)] * RANKS
    assert together(lambda rank, orders: orders.take() if rank else orders.give(None)) == [None] * RANKS


def test_what_went_well_everywhere_is_gathered_on_the_first_rank(together: Together) -> None:
    found = together(lambda rank, orders: orders.agree(order(1), "fetched", b"%d" % rank))
    assert found == [[b"0", b"1", b"2"], [], []]


@pytest.mark.parametrize("failing", range(RANKS))
def test_what_failed_on_one_rank_failed_on_all(together: Together, failing: int) -> None:
    def phase(rank: int, orders: Orders) -> Any:
        return orders.agree(order(1), "fetched", OSError("disk full") if rank == failing else b"")

    public = f"rank {failing}: OSError (its text stays in the participant's log)"
    assert together(phase) == [(f"rank {failing}: disk full", public)] * RANKS
    assert together(lambda _, orders: orders.agree(order(1), "sent", b"")) == [[b""] * RANKS, [], []]


def test_the_first_rank_has_a_word(together: Together) -> None:
    assert together(lambda rank, orders: orders.say(order(1), "answer", "" if rank else "counted")) == ["counted"] * 3


def test_the_last_step_is_the_same_everywhere(ranks: list[Orders]) -> None:
    assert not any(orders.halted(order(1), 9) for orders in ranks)
    ranks[0].halt(order(1), 7)
    assert [orders.halted(order(1), 6) for orders in ranks] == [False] * RANKS
    assert [orders.halted(order(1), 7) for orders in ranks] == [True] * RANKS
    assert not ranks[1].halted(order(2), 7)


def test_a_round_that_the_server_drops_is_abandoned_on_every_rank(together: Together) -> None:
    controls = [TaskControl(60.0) for _ in range(RANKS)]
    inside = threading.Barrier(RANKS)

    def work(rank: int, orders: Orders) -> str:
        with orders.abandoning(order(1), controls[rank]):
            inside.wait(WAIT_S)
            if rank == 0:
                controls[0].abandon("enough have reported")
            assert controls[rank].abandoned.wait(WAIT_S)
        return controls[rank].reason

    assert together(work) == ["enough have reported"] * RANKS


def test_a_round_that_ends_well_is_abandoned_nowhere(together: Together) -> None:
    controls = [TaskControl(60.0) for _ in range(RANKS)]

    def work(rank: int, orders: Orders) -> bool:
        with orders.abandoning(order(1), controls[rank]):
            if rank == 0:
                orders.end(order(1))
        return controls[rank].abandoned.is_set()

    assert together(work) == [False] * RANKS


def test_rounds_leave_nothing_behind_but_the_last_two(store: Any, together: Together) -> None:
    def whole(number: int, rank: int, orders: Orders) -> None:
        deal(rank, orders, number)
        control = TaskControl(60.0)
        with orders.abandoning(order(number), control):
            orders.agree(order(number), "fetched", b"")
            if rank == 0:
                orders.halt(order(number), 5)
            orders.say(order(number), "answer", "" if rank else "counted")
            if rank == 0:
                orders.end(order(number))

    sizes = []
    for number in range(1, 7):
        together(partial(whole, number))
        sizes.append(store.num_keys())
    assert sizes[2:] == [sizes[2]] * 4
    assert not store.check(["4/ended"])
    assert store.check(["6/ended"])


def test_a_file_store_lets_ranks_wait_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is given after the other rank has checked without success."""
    monkeypatch.setattr(orders, "LOOK_S", 0.05)
    store: Any = FileStore(str(tmp_path / "store"), 2)
    first = Orders(World(0, 2, 0, torch.device("cpu")), store.clone(), lambda: False)

    def looked() -> bool:
        first.give(order(1))
        return False

    other = Orders(World(1, 2, 1, torch.device("cpu")), store.clone(), looked)
    assert other.take() == order(1)
