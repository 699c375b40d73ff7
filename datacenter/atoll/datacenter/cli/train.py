"""``atoll silo train``: start the ranks of a job on this machine, and restart them when needed."""

from __future__ import annotations

from typing import Any

import click

from atoll.datacenter.cli.launching import Start, start_options

_MODULE = "atoll.datacenter.train"


@click.command()
@start_options
def train(**start: Any) -> None:
    """Train the job of JOB.toml, with one process for each GPU of this machine.

    Everything that can be checked in advance is checked before a process starts. When a rank is lost, all ranks restart
    from the last checkpoint; with faults.recovery = "in-place" only its replica restarts, with the state of another
    replica. SIGINT and SIGTERM end the job after a last checkpoint; the same command continues from there.
    """
    Start(**start).run(_MODULE, ())
