"""Traces: of chosen steps, on a signal, on a touched file; and the communication in two ranks' traces."""

from __future__ import annotations

import gzip
import json
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.metrics import tracing
from atoll.datacenter.metrics.communication import communication_of, length, merged, overlap
from atoll.datacenter.metrics.tracing import ON_DEMAND_STEPS, Tracing
from tests.datacenter.ranks import run_ranks


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.gz"))


def run(traced: Tracing, steps: range) -> None:
    for number in steps:
        with traced.step(number):
            torch.dot(torch.ones(8), torch.ones(8))


def test_chosen_steps(tmp_path: Path) -> None:
    with Tracing(tmp_path, rank=3, steps=(2, 3)) as traced:
        run(traced, range(6))
    assert names(tmp_path) == ["rank3-steps2-3.json.gz"]
    with gzip.open(tmp_path / "rank3-steps2-3.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::dot" for event in events) == 2
    said = json.loads((tmp_path / "rank3-steps2-3.communication.json").read_text())
    assert (said["communication_share"], said["exposed_share"]) == (0.0, None)


def test_a_signal_asks_for_the_next_steps_and_is_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with Tracing(tmp_path, rank=0) as traced:
        run(traced, range(2))
        os.kill(os.getpid(), signal.SIGUSR2)
        run(traced, range(2, 8))
    assert names(tmp_path) == [f"rank0-steps2-{1 + ON_DEMAND_STEPS}.json.gz"]
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_touched_file_asks_but_not_one_from_before(tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    with Tracing(tmp_path, rank=0) as traced:
        run(traced, range(2))
        os.utime(tmp_path / "now", ns=(0, (tmp_path / "now").stat().st_mtime_ns + 1))
        run(traced, range(2, 8))
    assert names(tmp_path) == ["rank0-steps2-4.json.gz"]


def test_a_trace_that_training_ends_in_is_written(tmp_path: Path) -> None:
    with Tracing(tmp_path, rank=0, steps=(0, 40)) as traced:
        run(traced, range(2))
    assert names(tmp_path) == ["rank0-steps0-1.json.gz"]


def test_traces_are_bounded_in_length_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_STEPS", 2)
    monkeypatch.setattr(tracing, "MAX_TRACES", 2)
    with Tracing(tmp_path, rank=0, steps=(0, 9)) as traced:
        run(traced, range(10))
    assert names(tmp_path) == ["rank0-steps0-1.json.gz", "rank0-steps2-3.json.gz"]


def test_in_another_thread_the_file_alone_is_heeded(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)

    def loop() -> None:
        with Tracing(tmp_path, rank=0, steps=(1, 1)) as traced:
            run(traced, range(3))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert names(tmp_path) == ["rank0-steps1-1.json.gz"]
    assert signal.getsignal(signal.SIGUSR2) == before


def reduce_much() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        traced = Tracing(Path(folder), rank=dist.get_rank(), steps=(0, 0))
        with traced.step(0):
            for _ in range(4):
                dist.all_reduce(torch.ones(1 << 18))
        said = traced.take()
        assert said is not None
        assert traced.take() is None
        with gzip.open(Path(folder) / f"rank{dist.get_rank()}-steps0-0.json.gz") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("name") == "gloo:all_reduce"]
        return {
            "share": said.communication_share,
            "seconds": said.traced_s,
            "sums": [[event["ts"], event["ts"] + event["dur"]] for event in events],
        }


def test_gloo_is_told_apart() -> None:
    """Its share of the time depends on what else the machine does: it is that of the written trace."""
    for found in run_ranks(reduce_much, 2):
        assert len(found["sums"]) == 4
        seconds = length(merged((begin, end) for begin, end in found["sums"])) / 1e6
        assert 0.0 < seconds < found["seconds"]
        assert found["share"] == pytest.approx(seconds / found["seconds"], rel=0.01)


class Kind:
    def __init__(self, name: str) -> None:
        self.name = name


class Range:
    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end


class Event:
    """The attributes of a profiler's event that are read."""

    def __init__(self, name: str, start: float, end: float, device: str = "CUDA") -> None:
        self.name, self.time_range, self.device_type = name, Range(start, end), Kind(device)


def test_exposed_is_communication_that_nothing_hides() -> None:
    events: list[Any] = [
        Event("aten::mm", 0, 100, "CPU"),
        Event("sm90_gemm", 10, 40),
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 60),
        Event("ncclDevKernel_AllGather_RING_LL", 50, 70),
        Event("elementwise", 65, 80),
    ]
    found = communication_of(events)
    assert found.traced_s == pytest.approx(100e-6)
    assert found.communication_share == pytest.approx(0.4)
    assert found.exposed_share == pytest.approx(0.4 - 0.1 - 0.05)


def test_nothing_traced_says_nothing() -> None:
    assert communication_of([]).communication_share == 0.0


def test_spans() -> None:
    assert merged([(3, 5), (0, 1), (4, 7), (1, 2)]) == [(0, 2), (3, 7)]
    assert overlap([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 20)]) == [(1, 2), (3, 4), (6, 7), (8, 9)]
    assert length([(0, 2), (3, 7)]) == 6
