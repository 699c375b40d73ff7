"""``atoll demo --private``: digits over many participants, with and without privacy, and the epsilon spent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.operator import Operator
from atoll.operator.run import checked
from atoll.server.cli.demo_run import served, tokens, train
from atoll.server.cli.errors import writing
from atoll.server.cli.output import print_json, print_table
from atoll.server.control.curves import panels
from atoll.server.control.words import duration
from atoll.server.demo.federation import LEAST_OF_MANY, POPULATION, Plan
from atoll.text.figures import bound, counted

if TYPE_CHECKING:
    from atoll.processes import Processes
    from atoll.server.control import ChargeSummary, RunDetail, RunSpending


@dataclass(frozen=True)
class PrivateSummary:
    """The result of the private demo, which ``--json`` prints. Accuracies are of the final models, on held-out data.

    Attributes:
        run: the private run.
        plain_run: the run without privacy, for comparison.
        epsilon: the run's spending at ``delta``, according to the ledger.
    """

    run: str
    plain_run: str
    status: str
    rounds: int
    clients: int
    accuracy: float | None
    plain_accuracy: float | None
    epsilon: float
    delta: float | None
    charges: int
    noise_multiplier: float | None
    total_s: float
    report: str


def run_private(directory: Path, plan: Plan, processes: Processes, report: Path, *, shown: bool) -> PrivateSummary:
    """Play both runs on one server, and write the report.

    Raises:
        RunFailedError: if a run fails.
        OperatorError: if the server cannot be reached, or the report cannot be written.
        ChildFailedError: if the server or a crowd fails.
    """
    began = time.monotonic()
    with served(directory, plan, processes) as (federation, client):
        federation.start_crowds(tokens(client, plan))
        plain = _trained(client, federation.job, plan.rounds, shown=shown)
        private = _trained(client, federation.private_job, plan.rounds, shown=shown)
        (spent,) = client.population(POPULATION, verify=True).runs
        charged = client.newest_charges(run=private.run.run, limit=plan.rounds).charges
    summary = _summary(plan, plain, private, spent, charged, report, time.monotonic() - began)
    _write_report(summary, plain, private, charged)
    return summary


def show(summary: PrivateSummary, *, json_output: bool) -> None:
    """Print the summary: the numbers and their meaning."""
    if json_output:
        print_json(summary)
        return
    click.echo()
    print_table((f"run {summary.run}", summary.status), list(_facts(summary).items()), "")
    for line in _meaning(summary):
        click.echo(f"\n{line}")


def _trained(client: Operator, job: Path, rounds: int, *, shown: bool) -> RunDetail:
    click.echo(f"{job.stem.replace('job', 'plain')} run: {counted(rounds, 'round')}", err=True)
    detail = train(client, job, shown=shown)
    checked(detail.run)
    return detail


def _summary(
    plan: Plan,
    plain: RunDetail,
    private: RunDetail,
    spent: RunSpending,
    charged: tuple[ChargeSummary, ...],
    report: Path,
    total_s: float,
) -> PrivateSummary:
    return PrivateSummary(
        run=private.run.run,
        plain_run=plain.run.run,
        status=private.run.status,
        rounds=private.run.rounds_released,
        clients=plan.clients,
        accuracy=_final(private),
        plain_accuracy=_final(plain),
        epsilon=spent.epsilon,
        delta=spent.delta,
        charges=spent.releases,
        noise_multiplier=charged[-1].noise_multiplier if charged else None,
        total_s=total_s,
        report=str(report),
    )


def _accuracy(detail: RunDetail) -> list[float]:
    for panel in panels(detail.rounds):
        if panel.metric == "accuracy":
            return [value for _, value in panel.best_curve.points]
    return []


def _final(detail: RunDetail) -> float | None:
    found = _accuracy(detail)
    return found[-1] if found else None


def _facts(summary: PrivateSummary) -> dict[str, str]:
    def words(accuracy: float | None) -> str:
        return "-" if accuracy is None else f"{accuracy:.4f}"

    noise = "-" if summary.noise_multiplier is None else f"{summary.noise_multiplier:.3f} clip norms on each sum"
    return {
        "participants": f"{summary.clients}, each drawn for a round with probability 1/2",
        "rounds released": f"{summary.rounds}, {summary.charges} of them charged to population {POPULATION!r}",
        "budget spent, by the ledger": f"epsilon {bound(summary.epsilon, 5)} at delta {summary.delta:g}",
        "noise": noise,
        "held-out accuracy": words(summary.accuracy),
        "without privacy": words(summary.plain_accuracy),
        "everything": duration(summary.total_s),
        "report": summary.report,
    }


def _meaning(summary: PrivateSummary) -> tuple[str, ...]:
    return (
        "What that means: without the updates of any one participant, the probability of any outcome of all "
        f"{summary.rounds} models would change by at most a factor of e^{bound(summary.epsilon, 2)}, except with "
        f"probability {summary.delta:g}. In theory that is a weak promise; epsilon 1 is a strong one. The price "
        "depends on the number of participants: a sum gets the same noise for ten, which would drown their updates, "
        "as for thousands, which would get a far smaller epsilon at this accuracy.",
        f"Participants have {LEAST_OF_MANY} examples or more each. The run without privacy is here to compare with: "
        "people who are promised privacy must not be in such a run as well, and the ledger names them unprotected.",
    )


def _write_report(
    summary: PrivateSummary, plain: RunDetail, private: RunDetail, charged: tuple[ChargeSummary, ...]
) -> None:
    from atoll.server.demo.comparison import page  # noqa: PLC0415  # matplotlib loads when it is needed

    spent = [charge.epsilon_after for charge in charged if charge.epsilon_after is not None]
    text = page(_accuracy(plain), _accuracy(private), spent, _facts(summary), _meaning(summary))
    with writing(f"the report {summary.report}"):
        Path(summary.report).write_text(text, encoding="utf-8")
