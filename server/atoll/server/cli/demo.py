"""``atoll demo``: runs a federation of real processes on this machine, writes a report, and cleans up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from atoll.operator.errors import BadInputError, OperatorError, RunFailedError
from atoll.processes import ChildFailedError, EndedBySignalError, Processes, raising_on_signals
from atoll.processes.demonstration import KeepError, workplace
from atoll.server.cli.demo_private import PrivateSummary, run_private
from atoll.server.cli.demo_private import show as show_private
from atoll.server.cli.demo_run import served, tokens, train
from atoll.server.cli.errors import Command, local_errors, writing
from atoll.server.cli.output import json_option, print_json, print_table
from atoll.server.control import Json, RunDetail
from atoll.server.control.curves import panels
from atoll.server.control.words import duration
from atoll.server.demo.federation import Plan
from atoll.text.figures import counted

MAX_CLIENTS = 64
MAX_PRIVATE_CLIENTS = 280
"""Maximum number of clients; there are too few digits for more."""
CLIENTS, ROUNDS = 8, 20
PRIVATE_CLIENTS, PRIVATE_ROUNDS = 200, 30
MAX_ROUNDS = 10_000


@dataclass(frozen=True)
class Summary:
    """The result of the demo, which ``--json`` prints. Accuracy and loss are of the final model, on held-out data."""

    run: str
    status: str
    rounds: int
    clients: int
    accuracy: float | None
    loss: float | None
    median_round_s: float | None
    training_s: float
    total_s: float
    report: str
    kept: str | None


@click.command(cls=Command)
@click.option(
    "--private",
    is_flag=True,
    help="With differential privacy: many participants in few processes, compared with the same without privacy.",
)
@click.option(
    "--clients",
    type=click.IntRange(1, MAX_PRIVATE_CLIENTS),
    help=f"Client processes; with --private, participants.  [default: {CLIENTS}, {PRIVATE_CLIENTS} with --private]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, MAX_ROUNDS),
    help=f"Rounds to train.  [default: {ROUNDS}, {PRIVATE_ROUNDS} with --private]",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Seed of data and draws.")
@click.option("--port", type=click.IntRange(0, 65533), default=0, help="Main port.  [default: free ones]")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Ingest processes.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("demo-report.html"),
    show_default=True,
    help="File for the HTML report.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything (data, logs, models, the server's state) in this new directory.",
)
@json_option
def demo(
    *,
    private: bool,
    clients: int | None,
    rounds: int | None,
    report: Path,
    keep: Path | None,
    json_output: bool,
    **others: int,
) -> None:
    """Train a classifier of handwritten digits over client processes on this machine.

    Starts a server and clients (TLS, enrolled with join tokens), trains on data split unevenly among them, shows the
    progress, and writes a report. All its processes and files are removed at the end. With --private, it shows the
    ledger's epsilon and compares the accuracy with a run without privacy.
    """
    plan, run = _plan(private, clients, rounds, **others), _run_private if private else _run_demo
    try:
        with local_errors(), raising_on_signals(), workplace(keep, "atoll-demo-") as directory:
            summary = run(directory, plan, report, keep, json_output=json_output)
    except EndedBySignalError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(error.exit_code) from None
    except KeepError as error:
        raise BadInputError(*error.args) from error
    except ChildFailedError as error:
        raise OperatorError(str(error)) from error
    if isinstance(summary, PrivateSummary):
        show_private(summary, json_output=json_output)
    else:
        _show(summary, json_output=json_output)
    if summary.status != "finished":
        raise RunFailedError(f"the run {summary.status}; the report says why: {summary.report}")


def _plan(private: bool, clients: int | None, rounds: int | None, **others: int) -> Plan:
    usual = (PRIVATE_CLIENTS, PRIVATE_ROUNDS) if private else (CLIENTS, ROUNDS)
    if not private and clients is not None and clients > MAX_CLIENTS:
        raise BadInputError(f"--clients {clients}: at most {MAX_CLIENTS} processes", "--private shares processes")
    return Plan(clients or usual[0], rounds or usual[1], **others, private=private)


def _run_private(directory: Path, plan: Plan, report: Path, _: Path | None, *, json_output: bool) -> PrivateSummary:
    with Processes(directory) as processes:
        return run_private(directory, plan, processes, report, shown=not json_output)


def _run_demo(directory: Path, plan: Plan, report: Path, keep: Path | None, *, json_output: bool) -> Summary:
    began = time.monotonic()
    with Processes(directory) as processes, served(directory, plan, processes) as (federation, client):
        for number, token in enumerate(tokens(client, plan)):
            federation.start_client(number, token)
        detail = train(client, federation.job, shown=not json_output)
        if keep is not None:
            client.run(detail.run.run).save_model(directory / "model.safetensors")
    _write_report(detail, report)
    return _summary(detail, plan, report, keep, time.monotonic() - began)


def _write_report(detail: RunDetail, path: Path) -> None:
    from atoll.server.report import render  # noqa: PLC0415  # matplotlib loads when it is needed

    with writing(f"the report {path}"):
        path.write_text(render(detail, now=time.time()), encoding="utf-8")


def _summary(detail: RunDetail, plan: Plan, report: Path, keep: Path | None, total_s: float) -> Summary:
    final = {panel.metric: panel.final for panel in panels(detail.rounds)}
    times = sorted(item.duration_s for item in detail.rounds if item.released and item.duration_s is not None)
    run = detail.run
    return Summary(
        run=run.run,
        status=run.status,
        rounds=run.rounds_released,
        clients=plan.clients,
        accuracy=final.get("accuracy"),
        loss=final.get("loss"),
        median_round_s=times[len(times) // 2] if times else None,
        training_s=(run.finished_at or 0.0) - (run.created_at or 0.0),
        total_s=total_s,
        report=str(report),
        kept=None if keep is None else str(keep),
    )


def _show(summary: Summary, *, json_output: bool) -> None:
    if json_output:
        print_json(summary)
        return
    rows: list[tuple[str, Json]] = [
        ("rounds released", f"{summary.rounds}, by {counted(summary.clients, 'client')}"),
        ("held-out accuracy", "-" if summary.accuracy is None else f"{summary.accuracy:.4f}"),
        ("held-out loss", "-" if summary.loss is None else f"{summary.loss:.4f}"),
        ("median round", "-" if summary.median_round_s is None else duration(summary.median_round_s)),
        ("training", duration(summary.training_s)),
        ("everything", duration(summary.total_s)),
        ("report", summary.report),
    ]
    if summary.kept is not None:
        rows.append(("kept in", summary.kept))
    print_table((f"run {summary.run}", summary.status), rows, "")
