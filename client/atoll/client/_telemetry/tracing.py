"""Spans of a participant's work, as part of the trace of its round.

The invitation contains the parent of the spans (W3C trace context). ``tracing_setup`` decides whether spans are made.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.task import Task


class Tracing:
    """Makes no spans; ``otel.OtelTracing`` makes them."""

    def task(self, task: Task) -> contextlib.AbstractContextManager[None]:
        """Enclose a whole task, in this thread."""
        del task
        return contextlib.nullcontext()

    def step(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Enclose one step of that task: download, evaluate, fit, table, upload or report."""
        del name
        return contextlib.nullcontext()

    def close(self) -> None:
        """Send the pending spans; takes a few seconds at most."""
