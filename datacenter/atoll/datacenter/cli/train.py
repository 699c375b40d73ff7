"""``atoll silo train``: starts the ranks of a job on this machine, and keeps them going."""

from __future__ import annotations

from typing import Any

import click

from atoll.datacenter.cli.launching import Start, start_options

_MODULE = "atoll.datacenter.train"


@click.command()
@start_options
def train(**start: Any) -> None:
    """Train what JOB.toml says, with a process for each GPU of this machine.

    Everything that can be known is checked before a process starts. Ranks that are lost start again from the last
    checkpoint. SIGINT and SIGTERM end the job after a last checkpoint; the same command goes on from there.
    """
    Start(**start).run(_MODULE, ())
