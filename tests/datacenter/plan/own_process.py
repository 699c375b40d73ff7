"""Run a function in a process of its own: a process can hold one fake world only."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

import torch

from tests.patience import WAIT_S

CONTEXT = multiprocessing.get_context("forkserver")

Taken = ParamSpec("Taken")
Made = TypeVar("Made")


def in_a_process_of_its_own(function: Callable[Taken, Made], *args: Taken.args, **kwargs: Taken.kwargs) -> Made:
    """Return what a module's function returns there, on one thread."""
    receiving, sending = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(function, sending, args, kwargs), daemon=True)
    process.start()
    sending.close()
    try:
        assert receiving.poll(WAIT_S), f"no answer within {WAIT_S} s"
        found: Made = receiving.recv()
    finally:
        process.kill()
        process.join()
        receiving.close()
    return found


def _answer(
    function: Callable[..., object], answer: Connection, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Runs in that process."""
    torch.set_num_threads(1)
    answer.send(function(*args, **kwargs))
