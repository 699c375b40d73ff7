"""Run a rank's work."""

from __future__ import annotations

from collections.abc import Callable

from atoll.datacenter.elastic.ending import end_rank
from atoll.datacenter.elastic.environment import grow_segments
from atoll.datacenter.elastic.recorder import switch_on


def run_rank(work: Callable[[], None]) -> None:
    """Run a rank's work; if it fails, end the process as ``end_rank`` does."""
    switch_on()
    grow_segments()
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the launcher must hear of any error
        end_rank(error)
