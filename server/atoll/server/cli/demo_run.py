"""Steps that both demos share: start the server, submit a job and follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.operator import Operator, Timeouts
from atoll.operator.errors import OperatorError
from atoll.server.cli.output import busy
from atoll.server.cli.watch import JsonSink, follow, observe
from atoll.server.demo.federation import Federation, Plan
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.processes import Processes
    from atoll.server.control import Progress, RunDetail

_TOKEN_LIFETIME_S = 600.0
_NO_RETURN = Timeouts(reconnect_s=0.0)
"""A demo's server that is gone does not come back, so reconnecting is useless."""


@contextmanager
def served(directory: Path, plan: Plan, processes: Processes) -> Iterator[tuple[Federation, Operator]]:
    """Start a demo's server; a failing child ends the client's calls.

    Raises:
        ChildFailedError: if the server or another child fails.
    """
    federation = Federation(directory, plan, processes)
    with busy("starting the server"):
        federation.prepare()
        ready = federation.start_server()
    joining = counted(plan.clients, "participant" if plan.private else "client")
    click.echo(f"server on {ready.address} (TLS), {joining} joining", err=True)
    with Operator.connect(ready.address, credential=ready.operator, timeouts=_NO_RETURN) as client:
        try:
            processes.on_failure = client.close
            yield federation, client
        except (OperatorError, ValueError):  # ValueError: raised by gRPC on a channel that a failure has closed
            processes.check(wait_s=1.0)
            raise


def train(client: Operator, job: Path, *, shown: bool) -> RunDetail:
    """Submit a job with the model ``init.safetensors`` beside it, follow its run to the end, and fetch the run."""
    run = client.submit(job, job.parent / "init.safetensors")
    if shown:
        observe(run)
    else:
        follow(run, Silent())
    return run.detail(members=True)


def tokens(client: Operator, plan: Plan) -> tuple[str, ...]:
    """Make a join token for each participant of a demo."""
    return client.make_tokens(plan.clients, organisation="demo", lifetime_s=_TOKEN_LIFETIME_S).tokens


class Silent(JsonSink):
    """Shows nothing, since only the summary is printed."""

    def change(self, progress: Progress) -> None:
        """Do nothing."""
