"""``atoll silo join``: run a training job as one participant of a federation."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.client import Access, UsageError
from atoll.client.silo import access_options, load_identity, locked, read_token, state_option, token_option
from atoll.datacenter.cli.launching import Start, start_options
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.policy import silo_policy
from atoll.datacenter.federation.spending import check_spending

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob

_MODULE = "atoll.datacenter.federation"


@click.command()
@start_options
@token_option()
@state_option("The silo's own directory, the same on all machines: identity, usage.")
@access_options
@click.option("--max-rounds", type=click.IntRange(min=0), default=0, help="End after this many rounds.")
def join(
    *,
    token: str,
    state: Path,
    server: str,
    insecure: bool,
    participant: str,
    policy: Path | None,
    labels: tuple[tuple[str, str], ...],
    max_rounds: int,
    **start: Any,
) -> None:
    """Take part in a federation with the job of JOB.toml, its ranks together as one participant.

    The first start exchanges a join token for an identity in --state. From then on the silo waits for rounds: each rank
    fetches its part of the global model, all run the inner steps, and each sends the change of its part. Several
    machines enrol once with `atoll silo enrol`, and join without a token. Lost ranks are restarted from the last
    checkpoint and continue the round. SIGINT and SIGTERM end the command.
    """
    options = ["--state", str(state), "--max-rounds", str(max_rounds)]
    options += ["--server", server] if server else []
    options += ["--insecure", "--participant", participant] if insecure else []
    options += ["--policy", str(policy)] if policy else []
    options += [word for name, text in labels for word in ("--label", f"{name}={text}")]
    options += ["--json"] if start["json_output"] else []

    def check(job: SiloJob) -> None:
        """Check that the job can take part, the policy is readable and there is an identity."""
        if job.asynchrony is not None:
            raise LayoutError("a job with [asynchrony] has no inner steps that end at the same time: it cannot join")
        if job.faults.recovery == "in-place":
            raise LayoutError(
                'faults.recovery = "in-place" is not available in a federation, where a round sends the weights of all '
                'ranks together: set "restart"'
            )
        check_spending(job)
        if policy is not None:
            silo_policy(policy)
        access = Access(read_token(token), state, server, insecure, participant)
        if start["meet"] is not None and access.join and load_identity(state) is None:
            raise UsageError(
                "several machines would use the same join token: let one of them enrol first with "
                f"`atoll silo enrol --join TOKEN --state {state}`, then join without --join"
            )
        alone = start["meet"] is None  # with several machines, rank 0's machine may already hold the lock
        with locked(state) if alone else nullcontext():  # as rank 0 will: fails if another process has it
            access.endpoint()

    # Ranks wait for orders in a loop of short timeouts; PyTorch's store would warn at each one.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    Start(**start).run(_MODULE, options, check, bounded=False)
