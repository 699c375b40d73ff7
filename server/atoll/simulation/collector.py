"""Limit Python's garbage collector during a simulation to objects that the simulation creates.

A full collection visits every live object. A process with PyTorch has several hundred thousand that live to the end,
and each imported module causes more collections: together a second of processor time, a quarter of a short simulation.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context in which nothing is collected."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def set_aside(load: Callable[[], object]) -> Iterator[None]:
    """A context in which collections skip objects from before it and those created by ``load``.

    Garbage among those objects is kept until the block has ended. Objects that the caller had frozen (``gc.freeze``)
    are visited again afterwards, because Python cannot distinguish them.

    Args:
        load: loads modules; nothing is collected meanwhile.
    """
    with paused():
        load()
        gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
