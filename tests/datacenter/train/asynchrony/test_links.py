"""Connections between server and workers as between GPUs: vectors in groups of two ranks, over gloo here."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.mesh import world
from atoll.datacenter.train.asynchrony import links
from atoll.datacenter.train.asynchrony.channel import Push, ServersEnd, WorkersEnd
from atoll.datacenter.train.asynchrony.links import Buffers, open_links
from tests.datacenter.ranks import run_ranks, started_ranks
from tests.datacenter.train.asynchrony.working import CPU, served
from tests.patience import WAIT_S

SIZE = 5


def served_both_ways(sections: dict[str, Any]) -> list[dict[str, Any]]:
    return [served(sections, paired=paired) for paired in (False, True)]


def test_vectors_in_groups_of_two_train_to_the_same_bits() -> None:
    sections = {"optimiser": {"name": "adamw"}, "asynchrony": {"staleness": 0, "apply": "clock"}}
    together, paired = run_ranks(served_both_ways, 3, sections)[0]
    assert paired["loss"] == together["loss"]
    assert paired["tokens"] == together["tokens"]
    assert paired["parameters"].keys() == together["parameters"].keys()
    for name, value in paired["parameters"].items():
        assert torch.equal(value, together["parameters"][name]), name


def groups_of_links() -> list[tuple[int, int, bool]]:
    """Return the peer of each link of this rank, how many ranks its vectors' group has, and whether it is confirmed."""
    return [
        (link.peer, link.vectors.size(), link.confirmed)
        for paired in (True, False)
        for link in open_links(CPU, WAIT_S, paired=paired)
    ]


def test_each_worker_has_a_group_of_its_own_with_the_server() -> None:
    server, *workers = run_ranks(groups_of_links, 3)
    assert server == [(1, 2, True), (2, 2, True), (1, 3, False), (2, 3, False)]
    assert workers == [[(0, 2, True), (0, 3, False)]] * 2


@pytest.mark.parametrize(("device", "paired"), [("cuda", [(0, 1), (0, 2)]), ("cpu", [])])
def test_on_gpus_vectors_have_groups_of_two(device: str, paired: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[int, int]] = []

    def pair_group(first: int, second: int, device_type: str, timeout_s: float) -> str:
        assert (device_type, timeout_s) == (device, WAIT_S)
        opened.append((first, second))
        return "pair"

    monkeypatch.setattr(links, "pair_group", pair_group)
    monkeypatch.setattr(links, "host_group", lambda _: "control")
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    found = open_links(torch.device(device), WAIT_S)
    assert opened == paired
    assert [link.confirmed for link in found] == [bool(paired)] * 2


@pytest.mark.parametrize(
    ("device", "backend", "more_s"), [("cuda", "nccl", world.WATCHDOG_GRACE_S), ("cpu", "gloo", 0)]
)
def test_ncclss_watchdog_leaves_time_for_the_error_that_names_the_worker(
    device: str, backend: str, more_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(dist, "new_group", lambda ranks, **settings: found.update(settings, ranks=ranks))
    world.pair_group(0, 3, device, 20.0)
    assert (found["ranks"], found["backend"]) == ([0, 3], backend)
    assert found["timeout"].total_seconds() == 20 + more_s


def lost_in_transit(fifo: str) -> str:
    """The worker's gradient arrives, and the worker dies before it confirms; return how that ends on the server."""
    (link,) = open_links(CPU, WAIT_S, paired=True)
    if dist.get_rank() == 0:
        return receive(ServersEnd(link))
    worker = WorkersEnd(link, SIZE)
    worker._settle = lambda: _hang(fifo)  # type: ignore[method-assign]  # it dies here
    worker.push(Push(torch.ones(SIZE), 7, 1.0))
    return "well"


def receive(server: ServersEnd) -> str:
    request, gradient = server.request(), torch.empty(SIZE)
    try:
        server.receive(gradient)
    except RuntimeError:
        return f"{request.kind} of {request.tokens} tokens lost, {gradient.tolist()} received"
    return "well"


def _hang(fifo: str) -> None:
    Path(fifo).write_text("sent")
    threading.Event().wait(WAIT_S)


def test_a_worker_that_dies_during_a_transfer_is_noticed_at_once(tmp_path: Path) -> None:
    """An NCCL transfer does not fail when a peer dies; the server waits for the confirmation, which does."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with started_ranks(lost_in_transit, 2, str(fifo), timeout_s=WAIT_S) as ranks:
        assert fifo.read_text() == "sent"
        ranks[1].process.kill()
        found = ranks[0].result(WAIT_S / 2)
    assert found == f"push of 7 tokens lost, {[1.0] * SIZE} received"


def test_transfers_share_memory_and_wait_for_it() -> None:
    buffers = Buffers(1, SIZE, CPU, 0.01)
    late = pytest.raises(TrainingError, match=r"1 transfers to or from workers have not ended within 0\.01 s")
    with buffers.one() as first, late, buffers.one():
        pass
    with buffers.one() as second:
        assert second is first
