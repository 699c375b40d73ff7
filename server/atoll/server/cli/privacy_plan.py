"""``atoll privacy plan``: a job's privacy cost and noise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.operator.errors import BadInputError
from atoll.operator.initial_weights import initial_file
from atoll.operator.models import opened
from atoll.server.cli.errors import Command, local_errors, writing
from atoll.server.cli.output import json_option, print_json, print_table, steps
from atoll.server.cli.privacy_samples import SampleOptions, sample_options, show_sample_plan
from atoll.server.cli.privacy_statistics import show_statistics_plan
from atoll.server.control.words import duration
from atoll.server.jobs import JobFileError, JobSpec, check_frozen, fragments_of, parse_job
from atoll.server.privacy.events import Adjacency, Sampling
from atoll.server.privacy.tensor_statistics import check_no_statistics
from atoll.settings.numbers import Finite
from atoll.text.figures import bound, counted, figure

if TYPE_CHECKING:
    from atoll.server.privacy.contract import Contract
    from atoll.server.privacy.planning import Alternative, Plan

_ADJACENCY = {
    Adjacency.ADD_REMOVE: "one participant's updates are there, or zeros in their place",
    Adjacency.REPLACE_ONE: "one participant's updates are exchanged for another's",
    Adjacency.ADD_REMOVE_ROW: "one row of one participant's table is there, or not",
}
_SAMPLING = {
    Sampling.POISSON: "each with probability {rate:.4g}, counted on",
    Sampling.NONE: "not counted on: at most {most} of {rounds} for each",
}
_WANTED = 1.0
"""Signal to noise of a round for which the plan finds a cohort."""
_DIGITS = 5
"""Digits of a planned epsilon."""
_COLUMNS = ("cohort>", "rounds>", "population>", "noise multiplier>", "signal/noise of a round>", "of the run>")


@click.command(cls=Command)
@click.argument("job", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--elements",
    type=click.IntRange(1),
    help="Number of elements of the model. Default: from the job's initial weights.",
)
@click.option(
    "--epsilon",
    "target",
    type=Finite(0, 1000, min_open=True),
    help="Target epsilon. Default: the job's.",
)
@click.option(
    "--signal-to-noise",
    "wanted",
    type=Finite(0, min_open=True),
    show_default="1",
    help="Find the smallest cohort with this signal-to-noise ratio in a round.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot to FILE.svg or FILE.html.")
@sample_options
@json_option
def plan(  # one argument per option
    *,
    job: Path | None,
    elements: int | None,
    target: float | None,
    wanted: float | None,
    plot: Path | None,
    json_output: bool,
    **samples: Any,
) -> None:
    """Show the spending of the private job JOB round by round, its noise, and alternatives that meet a target.

    For a job with [statistics] it shows the noise on its figures.

    With --rows, show what participants spend on their own rows with DP-SGD, the noise needed, and accuracies measured
    at similar signal-to-noise ratios. JOB is then optional, and its settings are defaults.
    """
    options = SampleOptions(**samples)
    if options.rows is not None:
        _without_rows_only({"--plot": plot, "--signal-to-noise": wanted})
        _plan_samples(options, job, elements, target, json_output=json_output)
        return
    if surplus := [name for name in options.given() if name != "--participants"]:
        raise BadInputError(f"{surplus[0]} is about DP-SGD of participants", "add --rows N")
    if job is None:
        raise BadInputError("nothing to plan", "give JOB.toml, or --rows N --batch B for DP-SGD of participants")
    if plot is not None and plot.suffix not in {".svg", ".html"}:
        raise BadInputError(f"{plot}: pictures are .svg or .html", "name the file so")
    spec = _parsed(job)
    if spec.statistics is not None:
        show_statistics_plan(spec, spec.statistics, json_output=json_output)
        return
    size = elements or _elements(job, spec)
    found = _worked_out(spec, size, target, wanted or _WANTED, options.participants)
    if plot is not None:
        _draw(found, plot)
    if json_output:
        print_json(found)
        return
    _show(found)
    for line in _advice(found, job):
        click.echo(line)


def _without_rows_only(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise BadInputError(f"{name} is about a private JOB, not about rows", f"leave out {name} or --rows")


def _plan_samples(
    options: SampleOptions,
    job: Path | None,
    elements: int | None,
    target: float | None,
    *,
    json_output: bool,
) -> None:
    spec = None if job is None else _parsed(job)
    if elements is None and job is not None and spec is not None:
        path = initial_file(spec, job.parent)
        elements = _elements(job, spec) if path is not None and path.is_file() else None
    show_sample_plan(options, spec, elements, target, json_output=json_output)


def _parsed(job: Path) -> JobSpec:
    try:
        return parse_job(job.read_bytes(), str(job))
    except JobFileError as error:
        raise BadInputError(str(error)) from error


def _elements(job: Path, spec: JobSpec) -> int:
    """Maximum number of elements that one round updates, from the header of the initial weights."""
    path = initial_file(spec, job.parent)
    if path is None:
        raise BadInputError(f"{job} names no initial weights, so the model's size is unknown", "give --elements N")
    if not path.is_file():
        raise BadInputError(f"{path} is not there, so the model's size is unknown", "make it, or give --elements N")
    with opened(path) as model:
        with local_errors():
            check_frozen(spec, model.layout)
            check_no_statistics(spec, model.layout)
        return fragments_of(spec, model.layout).largest


def _worked_out(spec: JobSpec, elements: int, target: float | None, wanted: float, participants: int | None) -> Plan:
    from atoll.server.privacy.planning import plan_of  # noqa: PLC0415  # imports numba, which takes a second

    with local_errors(), steps("working out the noise") as progress:
        return plan_of(spec, elements, target, wanted, progress, participants=participants)


def _draw(found: Plan, path: Path) -> None:
    from atoll.server.privacy.plan_figure import write_plan  # noqa: PLC0415  # imports matplotlib

    with writing(path):
        write_plan(found, path)


def _show(found: Plan) -> None:
    contract = found.contract
    print_table(("promise", ""), _promise(found), "")
    click.echo()
    print_table(("round>", "epsilon>"), [(one.rounds, bound(one.epsilon, _DIGITS)) for one in found.spent], "")
    click.echo()
    print_table(("in the mean of a round", "noise>", "signal, at most>", "signal/noise>"), _signal(found), "")
    click.echo(f"\nLeast noise for epsilon {found.target:.4g} at delta {contract.delta:g}:\n")
    print_table(_COLUMNS, map(_row, found.cohorts), "")
    click.echo()
    print_table(_COLUMNS, map(_row, found.durations), "")
    click.echo()
    for line in _conclusions(found):
        click.echo(line)


def _unit_words(contract: Contract) -> str:
    return "one row of a table" if contract.protects_rows else "one participant, with all that it sends in all rounds"


def _promise(found: Plan) -> list[tuple[str, str]]:
    contract, spent = found.contract, bound(found.spent[-1].epsilon, _DIGITS)
    return [
        ("unit", _unit_words(contract)),
        ("adjacency", f"{contract.adjacency}: {_ADJACENCY[contract.adjacency]}"),
        ("epsilon, delta", f"{spent}, {figure(contract.delta)} after {counted(contract.rounds, 'round')}"),
        ("accountant", _accountant_words(contract)),
        ("draw", _draw_words(contract)),
        ("mechanism", _mechanism_words(contract)),
        ("noise multiplier", _noise_words(contract)),
        ("clip norm", f"{contract.clip:g}" + (", then adaptive" if contract.adaptive else "")),
        ("largest weight", str(contract.weight_bound)),
        ("sums divided by", str(contract.divisor_weight)),
        ("population", f"{contract.population}, of {found.population_least} or more"),
        *([] if found.least_s is None else [("takes at least", _least_words(found.least_s, contract.rounds))]),
    ]


def _mechanism_words(contract: Contract) -> str:
    if contract.strategy is not None:
        return f"{contract.mechanism}, {counted(contract.strategy.buffers, 'buffer')}" + _kept(
            contract.strategy.buffers
        )
    if contract.mechanism == "banded":
        return f"{contract.mechanism}, {counted(contract.bands, 'band')}" + _kept(contract.bands - 1)
    return contract.mechanism


def _kept(vectors: int) -> str:
    """Words about the disk space that correlated noise takes on the server."""
    return f"; {8 * vectors} bytes for each element are kept from round to round"


def _accountant_words(contract: Contract) -> str:
    from atoll.server.privacy.accounting import answered_by  # noqa: PLC0415  # the accountants take seconds to import

    answered = answered_by(contract.costs(contract.rounds), contract.delta, contract.accountant)
    if answered == contract.accountant:
        return answered
    return f"{contract.accountant}, answered by {answered}: it has no smaller bound at such a delta and noise"


def _least_words(seconds: float, rounds: int) -> str:
    each_s = seconds / rounds
    return f"{duration(seconds)}: {rounds} rounds of straggler.report_window_s {each_s:g} s, however many are drawn"


def _draw_words(contract: Contract) -> str:
    return _SAMPLING[contract.sampling].format(
        rate=contract.sample_rate, most=contract.participations, rounds=counted(contract.rounds, "round")
    )


def _noise_words(contract: Contract) -> str:
    words = f"{contract.noise_multiplier:.5g}"
    counts = [("the count of norms", contract.count_noise), ("the number of reports", contract.report_noise)]
    on_counts = ", ".join(f"{noise:g} on {what}" for what, noise in counts if noise is not None)
    return f"{words} on updates, {on_counts}: together {contract.accounted_noise:.5g}" if on_counts else words


def _signal(found: Plan) -> list[tuple[str, ...]]:
    ratio = f"{found.signal_to_noise:.3g}"
    return [
        ("one element, root mean square", f"{found.noise_element:.3g}", f"{found.signal_element:.3g}", ratio),
        (f"all {found.elements} elements, L2", f"{found.noise_norm:.3g}", f"{found.signal_norm:.3g}", ratio),
        ("all rounds together, if they agree", "", "", f"{found.signal_to_noise_run:.3g}"),
    ]


def _row(one: Alternative) -> tuple[str, ...]:
    if one.noise_multiplier is None or one.signal_to_noise is None or one.signal_to_noise_run is None:
        return (str(one.cohort), str(one.rounds), "", "none meets it", "", "")
    return (
        str(one.cohort),
        str(one.rounds),
        str(one.population_least),
        f"{one.noise_multiplier:.4g}",
        f"{one.signal_to_noise:.3g}",
        f"{one.signal_to_noise_run:.3g}",
    )


def _conclusions(found: Plan) -> list[str]:
    within, best = found.rounds_within, found.cohort_wanted
    rounds = "all planned rounds are" if within is None else counted(within, "round is", "rounds are")
    lines = [f"With this noise {rounds} within epsilon {found.target:.4g}."]
    if best is None:
        lines.append(
            f"No cohort of this population has signal/noise {found.wanted:g} in a round at epsilon {found.target:.4g}: "
            "take a smaller model, fewer rounds, more participants, or a larger epsilon."
        )
    else:
        lines.append(f"Signal/noise {found.wanted:g} in a round takes a cohort of about {best.cohort}.")
    return lines


def _advice(found: Plan, job: Path) -> Iterator[str]:
    """Advice on settings that would serve the job better."""
    if (turns := found.in_turns) is not None:
        yield (
            f"If its {counted(turns.participants, 'participant')} took turns, the same noise over the run would cost "
            f"epsilon {bound(turns.epsilon, _DIGITS)} instead of {bound(found.spent[-1].epsilon, _DIGITS)}, and rounds "
            f'would end when their members have reported: cohort.sampler = "{turns.sampler}", '
            f"privacy.max_participations = {turns.max_participations}, min_separation = {turns.min_separation}, "
            f'mechanism = "{turns.mechanism}".'
        )
    if found.sample_level:
        yield (
            "Among so few participants the noise that hides a whole one drowns what all of them send. If rows of their "
            "data are to be protected, plan DP-SGD on the participants' side: "
            f"atoll privacy plan {shlex.quote(str(job))} --rows N --batch B (docs/privacy/local.md)"
        )
