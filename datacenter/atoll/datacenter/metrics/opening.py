"""From ``[metrics]`` to the sinks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.metrics.console import ConsoleLines
from atoll.datacenter.metrics.sink import JsonLines, Sink, Sinks

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.job.operation import MetricsSection
    from atoll.datacenter.metrics.record import RunFacts


def open_sinks(section: MetricsSection, facts: RunFacts, base: Path, *, rank: int, console: bool = True) -> Sinks:
    """The sinks that the job asks for: on rank 0; elsewhere none.

    Args:
        section: of the job.
        facts: of the job.
        base: folder of the job file, which paths are relative to.
        rank: of this process.
        console: whether lines go to standard error.

    Raises:
        MetricsPortError: if the port cannot be had.
        MissingExtraError: if TensorBoard is asked for and not installed.
        OSError: if a file or folder cannot be made.
    """
    opened: list[Sink] = []
    if rank != 0:
        return Sinks(opened)
    try:
        if section.port is not None:
            from atoll.datacenter.metrics.prometheus import Prometheus  # noqa: PLC0415  # most do without its library

            opened.append(Prometheus(section.host, section.port, facts))
        if section.json_lines is not None:
            opened.append(JsonLines(base / section.json_lines, facts))
        if section.tensorboard is not None:
            from atoll.datacenter.metrics.tensorboard import TensorBoard  # noqa: PLC0415  # most do without it

            opened.append(TensorBoard(base / section.tensorboard, facts))
        if console:
            opened.append(ConsoleLines(facts))
    except BaseException:
        Sinks(opened).close()
        raise
    return Sinks(opened)
