"""The unavoidable steps of a durable round of a small model, done plainly and measured one by one.

These are two commits (the reports; the sum and its results), a file for every update and one for the new model, each on
disk before the next step, and for every participant two gRPC round trips (an invitation with its answer, a report).
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

COMMITS, CALLS = 2, 2
_ROW_BYTES = 2000
_METHOD = "/benchmarks.Floor/Echo"


@dataclass(frozen=True)
class Floor:
    """Median seconds of one commit, one file written and fsynced, and one unary call."""

    commit_s: float
    file_s: float
    call_s: float

    @property
    def round_s(self) -> float:
        """The total of a round with two participants."""
        return self.round_of(2)

    def round_of(self, participants: int) -> float:
        """The total of a round that serves participants one after the other; commits are shared by all."""
        return COMMITS * self.commit_s + participants * (self.file_s + CALLS * self.call_s) + self.file_s

    @classmethod
    def mean(cls, measured: Sequence[Floor]) -> Floor:
        """Of what was measured at several times."""
        return cls(
            *(statistics.mean(getattr(one, name) for one in measured) for name in ("commit_s", "file_s", "call_s"))
        )


def floor(size_bytes: int, repeats: int = 200) -> Floor:
    """Measure on this machine's temporary disk, with files and messages of this size."""
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        return Floor(
            _commits(Path(folder), repeats),
            _files(Path(folder), size_bytes, repeats),
            _calls(size_bytes, repeats),
        )


def _median(work: Callable[[int], object], repeats: int) -> float:
    seconds = []
    for number in range(repeats):
        began = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _commits(folder: Path, repeats: int) -> float:
    database = sqlite3.connect(folder / "plain.sqlite3", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        database.execute(f"PRAGMA {pragma}")
    database.execute("CREATE TABLE rows (id INTEGER, body TEXT)")

    def commit(number: int) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO rows VALUES (?, ?)", (number, "x" * _ROW_BYTES))
        database.execute("COMMIT")

    try:
        return _median(commit, repeats)
    finally:
        database.close()


def _files(folder: Path, size_bytes: int, repeats: int) -> float:
    content = os.urandom(size_bytes)

    def write(number: int) -> None:
        with (folder / str(number)).open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())

    return _median(write, repeats)


def _calls(size_bytes: int, repeats: int) -> float:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    server = spawning.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{ours.recv()}") as channel:
            call: Any = channel.unary_unary(_METHOD)
            message = bytes(size_bytes)
            call(message)
            return _median(lambda _: call(message), repeats)
    finally:
        ours.send(None)
        server.join(10)


def _serve(pipe: Connection) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    echo: Any = grpc.unary_unary_rpc_method_handler(lambda request, _: request[:64])
    service, method = _METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: echo}),))
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    server.stop(None)
