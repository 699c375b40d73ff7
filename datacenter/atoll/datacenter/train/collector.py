"""Python's garbage collector, at the same steps on every rank.

By default it runs when a process has created enough objects: at a different step on each rank, and each time all ranks
wait for one. So it is off within steps, and all ranks collect together every few steps (torchtitan's
``GarbageCollection``, 2024).

torchtitan collects young generations only, because a full collection visits every module and compiled graph. But an
object that survives one such collection, and later becomes garbage in a cycle, is then never freed. Here the objects
that are alive at the first collection are frozen, and all later collections are full ones of the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class Collector:
    """Collects garbage every ``every_steps`` steps.

    Args:
        every_steps: steps between collections; 0 leaves it to Python.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps
        self._frozen = False

    @contextmanager
    def running(self) -> Iterator[Collector]:
        """Take over from Python after a full collection, and hand back to Python at the end.

        Objects that the caller had frozen are collected again afterwards: Python cannot distinguish them.
        """
        if not self._every or not gc.isenabled():
            yield self
            return
        gc.collect()
        gc.disable()
        try:
            yield self
        finally:
            if self._frozen:
                gc.unfreeze()
            gc.enable()

    def after_step(self, made: int) -> None:
        """Collect if a collection is due and Python does not collect itself.

        Args:
            made: number of steps since the job began.
        """
        if not self._every or made % self._every or gc.isenabled():
            return
        gc.collect()
        if not self._frozen:
            gc.freeze()
            self._frozen = True
