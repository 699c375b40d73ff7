"""Open the sinks of ``[metrics]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from atoll.datacenter.errors import DatacenterError
from atoll.datacenter.metrics.console import ConsoleLines
from atoll.datacenter.metrics.sink import JsonLines, Sink, Sinks

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.job.operation import MetricsSection
    from atoll.datacenter.metrics.record import RunFacts


class MetricsFileError(DatacenterError):
    """A file or folder for metrics cannot be created."""

    exit_code = 2


def open_sinks(section: MetricsSection, facts: RunFacts, base: Path, *, rank: int, console: bool = True) -> Sinks:
    """Open the sinks that the job asks for on rank 0; on other ranks there are none.

    Args:
        section: the job's ``[metrics]``.
        facts: facts of the job.
        base: folder of the job file; paths are relative to it.
        rank: rank of this process.
        console: whether lines go to standard error.

    Raises:
        MetricsPortError: if the port is not available.
        MissingExtraError: if TensorBoard is asked for and not installed.
        MetricsFileError: if a file or folder cannot be created.
    """
    opened: list[Sink] = []
    if rank != 0:
        return Sinks(opened)
    try:
        if section.port is not None:
            from atoll.datacenter.metrics.prometheus import Prometheus  # noqa: PLC0415  # most do without its library

            opened.append(Prometheus(section.host, section.port, facts))
        if section.json_lines is not None:
            with _named("json_lines", base / section.json_lines) as path:
                opened.append(JsonLines(path, facts))
        if section.tensorboard is not None:
            from atoll.datacenter.metrics.tensorboard import TensorBoard  # noqa: PLC0415  # most do without it

            with _named("tensorboard", base / section.tensorboard) as path:
                opened.append(TensorBoard(path, facts))
        if console:
            opened.append(ConsoleLines(facts))
    except BaseException:
        Sinks(opened).close()
        raise
    return Sinks(opened)


@contextmanager
def _named(key: str, path: Path) -> Iterator[Path]:
    try:
        yield path
    except OSError as error:
        raise MetricsFileError(
            f"metrics.{key} = {path} cannot be written: {error.strerror or error}: choose another path, or leave it out"
        ) from error
