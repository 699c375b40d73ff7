"""Python's garbage collector while a simulation plays: it looks through what the simulation makes, and nothing older.

A full collection looks at every object that is alive. In a process with PyTorch these are some hundred thousand that
stay to the end, and each further module that is loaded causes more collections: together a second of the processor,
a quarter of a short simulation.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Inside the block nothing is collected."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def set_aside(load: Callable[[], object]) -> Iterator[None]:
    """Inside the block no collection looks at what was there before it, nor at what ``load`` makes.

    Garbage among those objects waits until the block has ended. Objects that the caller had frozen (``gc.freeze``) are
    looked at again afterwards: Python cannot distinguish them.

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
