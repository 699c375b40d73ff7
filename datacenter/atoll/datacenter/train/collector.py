"""Python's garbage collector, at the same steps on every rank.

By default it runs when a process has created enough objects: at a different step on each rank, and each time all ranks
wait for one. So it is off within steps, and all ranks collect young objects together every few steps (torchtitan's
``GarbageCollection``, 2024).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 1
"""Oldest generation that is collected: objects that survived earlier collections are rarely garbage."""


class Collector:
    """Collects young garbage every ``every_steps`` steps.

    Args:
        every_steps: steps between collections; 0 leaves it to Python.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps

    @contextmanager
    def running(self) -> Iterator[Collector]:
        """Take over from Python after a full collection, and hand back to Python at the end."""
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
        """Collect if a collection is due and Python does not collect itself.

        Args:
            made: number of steps since the job began.
        """
        if self._every and made % self._every == 0 and not gc.isenabled():
            gc.collect(_YOUNG)
