"""``atoll silo demo``: silos and edge clients train one model on this machine, and are removed afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.demo.federation import Federation, Judge
from atoll.datacenter.demo.jobs import SHARES, Plan
from atoll.datacenter.demo.operator import Operator
from atoll.datacenter.errors import DatacenterError
from atoll.processes import ChildFailedError, EndedBySignalError, Processes, raising_on_signals
from atoll.processes.demonstration import KeepError, workplace

GRACE_S = 20.0
"""Seconds that participants get to end: a silo ends after its current step."""
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch creates a folder there as soon as a process has a model, and leaves it behind."""
_MB = 1e6


@dataclass(frozen=True)
class Summary:
    """Result of the demonstration; ``--json`` prints it.

    Attributes:
        run: id of the run.
        status: how the run ended.
        rounds: number of rounds released.
        inner_steps: steps of each participant in each round.
        participants: two silos and the edge clients.
        parameters: parameters of the model.
        losses: held-out loss in nats per byte: of the initial model, then after each round.
        encoding: encoding of updates.
        sent_bytes: bytes of all participants' updates.
        plain_bytes: bytes that plain data parallelism would have sent in as many steps.
        sample: text by the final model.
        training_s: seconds from the first invitation to the last release.
        total_s: seconds from start to end.
        report: path of the report.
        kept: the folder of ``--keep``.
    """

    run: str
    status: str
    rounds: int
    inner_steps: int
    participants: int
    parameters: int
    losses: list[float]
    encoding: str
    sent_bytes: int
    plain_bytes: int
    sample: str
    training_s: float
    total_s: float
    report: str
    kept: str | None


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=10, show_default=True, help="Outer steps.")
@click.option("--inner-steps", type=click.IntRange(1, 100_000), default=30, show_default=True, help="Steps per round.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of weights and draws.")
@click.option(
    "--encoding",
    type=click.Choice(["float32", "bfloat16", "int8", "int4"]),
    default="int8",
    show_default=True,
    help="Encoding of updates.",
)
@click.option("--port", type=click.IntRange(0, 65533), default=0, help="The server's main port.  [default: free ones]")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-silo-report.html"),
    show_default=True,
    help="Path of the HTML report.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything (text, job files, logs, the server's data) in this new directory.",
)
@json_option
def demo(*, report: Path, keep: Path | None, json_output: bool, **plan: Any) -> None:
    """Train a small language model over two silos of two ranks and two edge clients, on this machine's CPU.

    One silo shards parameters over its ranks (FSDP2), the other cuts matrices (tensor parallelism); each participant
    has different modules of Python's standard library. All are real processes over TLS, enrolled with join tokens, and
    they end with the command. Needs the extras ``server`` and ``silo``.
    """
    say: Callable[[str], None] = (lambda _: None) if json_output else click.echo
    try:
        with raising_on_signals(), workplace(keep, "atoll-silo-demo-") as folder:
            summary = _Demo(folder, Plan(**plan), report, say).run(kept=keep)
    except EndedBySignalError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(error.exit_code) from None
    except KeepError as error:
        raise click.UsageError(": ".join(error.args)) from error
    except (ChildFailedError, DatacenterError) as error:
        raise click.ClickException(str(error)) from error
    if json_output:
        print_json(asdict(summary))
    else:
        _show(summary)
    if summary.status != "finished":
        raise click.ClickException(f"the run {summary.status}; the report says why: {summary.report}")


class _Demo:
    """One demonstration."""

    def __init__(self, folder: Path, plan: Plan, report: Path, say: Callable[[str], None]) -> None:
        self._folder, self._plan, self._report, self._say = folder, plan, report, say
        self._began = time.monotonic()

    def run(self, kept: Path | None) -> Summary:
        """Run the demonstration from start to report."""
        os.environ[_CACHE_VARIABLE] = str(self._folder / "cache")
        with Processes(self._folder, GRACE_S) as processes:
            federation = Federation(self._folder, self._plan, processes)
            self._say("preparing text, first weights, a server")
            federation.prepare()
            judge = Judge.of(self._folder)
            before = judge.loss(self._folder / "init.safetensors")
            operator = federation.start_server()
            processes.on_failure = operator.abort
            try:
                self._say("two silos of 2 ranks and two edge clients are joining")
                federation.start_participants(operator)
                run = federation.submit(operator)
                self._say(f"{judge.parameters:,} parameters; before training: held-out loss {before:.4f}")
                for line in operator.follow(run):
                    self._say(line)
                processes.check()
                return self._ended(operator, run, judge, before, kept)
            except DatacenterError:
                processes.check(wait_s=1.0)
                raise

    def _ended(self, operator: Operator, run: str, judge: Judge, before: float, kept: Path | None) -> Summary:
        found: dict[str, Any] = operator.do("run", "show", run, "--members", "--json")
        model = self._folder / "model.safetensors"
        operator.do("run", "model", run, "-o", str(model), "--json")
        operator.do("run", "report", run, "-o", str(self._report))
        members = [member for item in found["rounds"] for member in item["members"]]
        others, steps = len(SHARES) - 1, found["run"]["rounds_released"] * self._plan.inner_steps
        losses = [item["metrics"]["server/loss"] for item in found["rounds"] if "server/loss" in item["metrics"]]
        opened = [item["opened_at"] for item in found["rounds"] if item["opened_at"] is not None]
        return Summary(
            run=run,
            status=found["run"]["status"],
            rounds=found["run"]["rounds_released"],
            inner_steps=self._plan.inner_steps,
            participants=len(SHARES),
            parameters=judge.parameters,
            losses=[before, *losses],
            encoding=self._plan.encoding,
            sent_bytes=sum(member["payload_bytes"] for member in members),
            # a ring all-reduce: each of P sends 2 (P - 1) / P of the gradient, 4 bytes per element, in each step
            plain_bytes=2 * others * 4 * judge.parameters * steps,
            sample=judge.sample(model, self._plan.seed),
            training_s=(found["run"]["finished_at"] or 0.0) - min(opened, default=0.0),
            total_s=time.monotonic() - self._began,
            report=str(self._report),
            kept=None if kept is None else str(kept),
        )


def _show(summary: Summary) -> None:
    rows = {
        "rounds": f"{summary.rounds} of {summary.inner_steps} steps, by {summary.participants} participants",
        "held-out loss": " → ".join(f"{value:.4f}" for value in (summary.losses[0], summary.losses[-1])),
        "sent in updates": f"{summary.sent_bytes / _MB:,.1f} MB, as {summary.encoding}",
        "plain data parallel": f"{summary.plain_bytes / _MB:,.1f} MB for as many steps, "
        f"{summary.plain_bytes / max(1, summary.sent_bytes):,.0f} times as much",
        "training": f"{summary.training_s:.1f} s",
        "everything": f"{summary.total_s:.1f} s",
        "report": summary.report,
    }
    rows |= {"kept in": summary.kept} if summary.kept else {}
    for name, value in rows.items():
        click.echo(f"{name:<22}{value}")
    click.echo("\nwhat the model writes:\n")
    click.echo("\n".join(f"    {line}" for line in summary.sample.splitlines()))
