"""What both demos do: start the server, submit a job and follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.server.cli import model_files
from atoll.server.cli.client import ControlClient
from atoll.server.cli.connection import find_target
from atoll.server.cli.errors import CommandError
from atoll.server.cli.output import busy
from atoll.server.cli.watch import JsonSink, follow, observe
from atoll.server.demo.federation import Federation, Plan
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.processes import Processes
    from atoll.server.control import Progress, RunDetail

TOKEN_LIFETIME_S = 600.0


@contextmanager
def served(directory: Path, plan: Plan, processes: Processes) -> Iterator[tuple[Federation, ControlClient]]:
    """Start the server of a demo; a child that fails ends the calls of the client.

    Raises:
        ChildFailedError: if the server or another child fails.
    """
    federation = Federation(directory, plan, processes)
    with busy("starting the server"):
        federation.prepare()
        ready = federation.start_server()
    joining = counted(plan.clients, "participant" if plan.private else "client")
    click.echo(f"server on {ready.address} (TLS), {joining} joining", err=True)
    target = find_target(ready.address, ready.operator, None, insecure=False)
    with ControlClient(target.open(), target.address) as client:
        try:
            processes.on_failure = client.channel.close
            yield federation, client
        except (CommandError, ValueError):  # ValueError: what gRPC raises on the channel that a failure closed
            processes.check(wait_s=1.0)
            raise


def train(client: ControlClient, job: Path, *, shown: bool) -> RunDetail:
    """Submit a job, follow its run to the end, fetch it; the initial model is ``init.safetensors`` beside it."""
    with model_files.open_model(job.parent / "init.safetensors") as model:
        blob = model_files.upload(client, model)
        run = client.submit(job.read_bytes(), job.name, model.layout, blob)
    if shown:
        observe(client, run, reconnect_s=0.0)
    else:
        follow(client, run, Silent(), reconnect_s=0.0)
    return client.run(run, members=True)


class Silent(JsonSink):
    """Shows nothing: only the summary is printed."""

    def change(self, progress: Progress) -> None:
        """Nothing."""
