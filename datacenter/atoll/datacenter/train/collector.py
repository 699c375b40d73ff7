"""Python's garbage collector, at the same steps on every rank.

Left to itself it runs when a process has made enough objects: on another rank at another step, and each time all ranks
wait for one. So it is off within steps, and young objects are collected every so many steps by all ranks together
(torchtitan's ``GarbageCollection``, 2024).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 1
"""Generation up to which a collection looks: what lived through earlier ones is rarely garbage."""


class Collector:
    """Collects young garbage every so many steps.

    Args:
        every_steps: steps between collections; 0 leaves it to Python.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps

    @contextmanager
    def running(self) -> Iterator[Collector]:
        """Take over from Python, after a whole collection, and give back at the end what was found."""
        if not self._every or not gc.isenabled():
            yield self
            return
        gc.collect()
        gc.disable()
        try:
            yield self
        finally:
            gc.enable()

    def after_step(self, made: int) -> None:
        """Collect if it is due and Python does not do so itself.

        Args:
            made: number of steps since the job began.
        """
        if self._every and made % self._every == 0 and not gc.isenabled():
            gc.collect(_YOUNG)
