"""``atoll silo plan``: which layouts of a job fit, and how fast they would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.cli.plan_tables import print_comparison, print_details, print_ranking
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import load_job
from atoll.datacenter.machine import DEFAULT_SHEET, rates_of
from atoll.datacenter.plan.layout import Layout, Task, layout_of
from atoll.datacenter.plan.prediction import Prediction, predict_layout
from atoll.datacenter.plan.search import search
from atoll.datacenter.plan.step_time import Machine
from atoll.datacenter.plan.verify import Compared, refusal, verify
from atoll.datacenter.sizing.formula import Figure, explain

if TYPE_CHECKING:
    from atoll.datacenter.plan.candidates import Wanted

_WORDS = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "micro_batch", "micro_batches", "stages_per_rank")
_NAMES = ("method", "checkpointing", "schedule")
_EXPLAINED: dict[str, Callable[[Prediction], Figure]] = {
    "memory": lambda one: one.memory,
    "step": lambda one: one.step,
    "mfu": lambda one: one.mfu,
    "bubble": lambda one: one.time.bubble,
}


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpus", required=True, type=click.IntRange(1, 1 << 20), help="Number of ranks.")
@click.option(
    "--gpu", default=DEFAULT_SHEET, show_default=True, help="Name of a data sheet, or file of `atoll silo bench`."
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), help="Layouts to print.")
@click.option("--fix", multiple=True, metavar="KEY=VALUE", help="Only such layouts, e.g. tp=8 or method=zero3.")
@click.option("--as-written", is_flag=True, help="Only the layout that the job file asks for.")
@click.option(
    "--explain",
    "explained",
    type=click.Choice([*_EXPLAINED, "collectives"]),
    help="Print the formulas of the best layout.",
)
@click.option(
    "--verify", "verified", is_flag=True, help="Count the best layout that PyTorch's fake backend can run, and compare."
)
@json_option
def plan(  # noqa: PLR0913  # one for each option
    *,
    job_file: Path,
    gpus: int,
    gpu: str,
    top: int,
    fix: tuple[str, ...],
    as_written: bool,
    explained: str | None,
    verified: bool,
    json_output: bool,
) -> None:
    """Find without hardware which layouts of a job fit, and rank them by predicted step time."""
    job = load_job(job_file)
    task, machine = Task.of(job), Machine.of(rates_of(gpu))
    if as_written:
        check_layout(task.job, gpus)
        best = [predict_layout(task, layout_of(task.job, gpus), machine)]
        title = f"{task.job.job.name} as written on {gpus} x {machine.rates.name}"
    else:
        with _progress() as progress:
            found = search(task, gpus, machine, wanted=_wanted(fix), progress=progress)
        best = found.best
        title = (
            f"{task.job.job.name} on {gpus} x {machine.rates.name}: {found.considered:,} layouts looked at, "
            f"{found.fitting:,} fit; the best of each of {len(best):,} meshes"
        )
    if job.privacy is not None:
        title += "\nnot counted: time and memory that [privacy] adds"
    compared: list[Compared] = []
    if verified:
        chosen = next((one.layout for one in best if refusal(task, one.layout) is None), best[0].layout)
        compared = verify(task, chosen)
        title += f"\ncounted: {chosen.describe()}"
    if json_output:
        print_json(_as_json(best[:top], compared, explained))
    else:
        _print(best[:top], compared, explained, title)
    if any(not one.good for one in compared):
        raise LayoutError("prediction and count differ by more than their bounds")


def _print(best: list[Prediction], compared: list[Compared], explained: str | None, title: str) -> None:
    print_ranking(best, title)
    print_details(best[0])
    if not best[0].fits:
        click.echo("\nThis does not fit.")
    if explained is not None:
        click.echo(f"\nFormulas: {explained}")
        for line in _formulas(best[0], explained):
            click.echo(f"  {line}")
    if compared:
        print_comparison(compared)


def _as_json(best: list[Prediction], compared: list[Compared], explained: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"layouts": [one.as_dict() for one in best]}
    if explained is not None:
        found["formulas"] = list(_formulas(best[0], explained))
    if compared:
        found["verified"] = [
            {"what": one.what, "predicted": one.predicted, "counted": one.counted, "good": one.good} for one in compared
        ]
    return found


def _formulas(one: Prediction, explained: str) -> Iterator[str]:
    if explained != "collectives":
        yield from explain(_EXPLAINED[explained](one))
        return
    for message in one.messages():
        yield from explain(message.total)


def _wanted(fixed: tuple[str, ...]) -> Wanted | None:
    """Parse ``KEY=VALUE`` to a filter of layouts.

    Raises:
        click.BadParameter: naming what is allowed.
    """
    wanted: dict[str, int | str] = {}
    for text in fixed:
        key, _, value = text.partition("=")
        if key in _WORDS and value.isdigit():
            wanted[key] = int(value)
        elif key in _NAMES and value:
            wanted[key] = value
        else:
            raise click.BadParameter(
                f'"{text}": allowed are {", ".join(_WORDS)} with a whole number, and {", ".join(_NAMES)} with a name',
                param_hint="--fix",
            )
    if not wanted:
        return None

    def suits(layout: Layout) -> bool:
        found = layout.as_dict()
        return all(found[key] == value for key, value in wanted.items())

    return suits


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on standard error if it is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("meshes", total=None)
        yield lambda done, of: bar.update(shown, completed=done, total=of)
