"""Runs a function on several ranks: forked processes that meet over gloo on the loopback."""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.patience import WAIT_S

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.testing",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "opacus",
    "sklearn.datasets",
    "atoll.datacenter.train.trainer",
)
"""Imported once; each rank is a fork of the process that has them."""


def preload(modules: Iterable[str]) -> None:
    """Import these too before the first rank is forked: without that each rank imports its function's module itself.

    Args:
        modules: full names, for example of the modules whose tests start ranks.
    """
    _CONTEXT.set_forkserver_preload([*_PRELOADED, *modules, "tests.datacenter.frozen"])


preload(())


class RankError(AssertionError):
    """A rank has failed; holds its traceback."""


@dataclass(frozen=True)
class Started:
    """A rank that runs."""

    rank: int
    process: ForkServerProcess
    answers: Connection

    def result(self, timeout_s: float) -> Any:
        """Wait for the function's return value on this rank.

        Raises:
            RankError: with its traceback, or saying that it did not end in time, or without an answer.
        """
        if not self.answers.poll(timeout_s):
            raise RankError(f"rank {self.rank} has not ended within {timeout_s} s")
        return _received(self.rank, self.answers)


def run_ranks(function: Callable[..., Any], ranks: int, *args: Any, timeout_s: float = WAIT_S) -> list[Any]:
    """Call ``function(*args)`` on each rank of a new world, and return what each returned, in order of rank.

    Args:
        function: importable by name; finds its rank by ``torch.distributed``.
        ranks: how many.
        args: for each of them the same.
        timeout_s: for all of it; also the collectives' own.

    Returns:
        Tensors, numbers, text, and lists, tuples and dicts of them.

    Raises:
        RankError: with the traceback of the first rank that failed, or naming those that did not end in time.
    """
    with started_ranks(function, ranks, *args, timeout_s=timeout_s) as started:
        return _gather(started, timeout_s)


@contextmanager
def started_ranks(
    function: Callable[..., Any], ranks: int, *args: Any, timeout_s: float = WAIT_S
) -> Iterator[list[Started]]:
    """Like ``run_ranks``, for a test that acts on ranks while they run; all are killed at the end of the context."""
    with tempfile.TemporaryDirectory() as folder:
        started = [_start(function, rank, ranks, args, folder, timeout_s) for rank in range(ranks)]
        try:
            yield started
        finally:
            for one in started:
                one.process.kill()
                one.process.join()
                one.answers.close()


def _start(
    function: Callable[..., Any], rank: int, ranks: int, args: tuple[Any, ...], folder: str, timeout_s: float
) -> Started:
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=_rank, args=(function, rank, ranks, args, folder, timeout_s, sending), daemon=True
    )
    process.start()
    sending.close()
    return Started(rank, process, receiving)


def _gather(started: list[Started], timeout_s: float) -> list[Any]:
    pending = {one.answers: one.rank for one in started}
    results: dict[int, Any] = {}
    while pending:
        ready = wait(list(pending), timeout=timeout_s)
        if not ready:
            raise RankError(f"ranks {sorted(pending.values())} have not ended within {timeout_s} s")
        for answers in ready:
            assert isinstance(answers, Connection)
            rank = pending.pop(answers)
            results[rank] = _received(rank, answers)
    return [results[rank] for rank in sorted(results)]


def _received(rank: int, answers: Connection) -> Any:
    try:
        good, payload = answers.recv()
    except EOFError:
        raise RankError(f"rank {rank} ended without an answer") from None
    if not good:
        raise RankError(f"rank {rank}:\n{payload}")
    return torch.load(io.BytesIO(payload), weights_only=True)


def _rank(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    args: tuple[Any, ...],
    folder: str,
    timeout_s: float,
    answers: Connection,
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo")
    try:
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group("gloo", store, timedelta(seconds=timeout_s), ranks, rank)
        written = io.BytesIO()
        torch.save(function(*args), written)
        answers.send((True, written.getvalue()))
        dist.barrier()  # no rank leaves while others still communicate with it
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  # the test must show any error
        answers.send((False, traceback.format_exc()))
