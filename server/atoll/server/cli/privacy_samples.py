"""``atoll privacy plan --rows N``: noise and signal to noise of participants that train with DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from atoll.operator.errors import BadInputError
from atoll.server.cli.output import busy, print_json, print_table
from atoll.settings.numbers import Finite
from atoll.text.figures import bound, counted, figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.accounting import DpSgdPlan, DpSgdTraining
    from atoll.server.jobs import JobSpec

_DIGITS = 5
"""Digits of a planned epsilon."""
_OPTIONS = (
    click.option("--rows", type=click.IntRange(1), help="Plan DP-SGD on this many rows of each participant instead."),
    click.option("--batch", type=click.IntRange(1), help="With --rows: rows expected in a step."),
    click.option("--epochs", type=click.IntRange(1), help="With --rows: passes over the rows in a round. Default: 1."),
    click.option("--steps", type=click.IntRange(1), help="With --rows: steps in a round, instead of --epochs."),
    click.option("--rounds", type=click.IntRange(1), help="With --rows. Default: the job's."),
    click.option("--participants", type=click.IntRange(1), help="Number of participants. Default: the job's, or 1."),
    click.option(
        "--delta", type=Finite(0, 1, min_open=True, max_open=True), help="With --rows. Default: the job's [privacy]."
    ),
    click.option("--noise-multiplier", type=Finite(0, 1e6, min_open=True), help="With --rows, instead of --epsilon."),
    click.option(
        "--accountant", type=click.Choice(["prv", "rdp"]), help="With --rows: the ledger's accountant. Default: prv."
    ),
)


@dataclass(frozen=True)
class SampleOptions:
    """The options of ``atoll privacy plan`` about rows; None for options that were not given."""

    rows: int | None
    batch: int | None
    epochs: int | None
    steps: int | None
    rounds: int | None
    participants: int | None
    delta: float | None
    noise_multiplier: float | None
    accountant: Any

    def given(self) -> list[str]:
        """Names of the given options."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


def sample_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``SampleOptions``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def show_sample_plan(
    options: SampleOptions, spec: JobSpec | None, elements: int | None, target: float | None, *, json_output: bool
) -> None:
    """Plan DP-SGD on the participants' side and print the plan.

    Args:
        options: the given options.
        spec: the job whose settings are defaults; None without one.
        elements: number of elements of the trained model; None if unknown.
        target: target epsilon; None for the job's.
        json_output: print JSON.

    Raises:
        BadInputError: for missing, contradictory or out-of-range options.
    """
    from atoll.accounting import plan_dp_sgd  # noqa: PLC0415  # scipy takes a while
    from atoll.server.privacy.measured_cases import beside  # noqa: PLC0415

    if target is not None and options.noise_multiplier is not None:
        raise BadInputError("--epsilon and --noise-multiplier exclude each other", "give one of them")
    section = None if spec is None else spec.privacy
    if target is None and options.noise_multiplier is None:
        target = None if section is None else section.epsilon
    delta = options.delta or (None if section is None else section.delta)
    if delta is None:
        raise BadInputError("--delta is missing", "give it, well below 1 / rows, or a JOB with [privacy]")
    if target is None and options.noise_multiplier is None:
        raise BadInputError("--epsilon is missing", "give it or --noise-multiplier, or a JOB with [privacy] epsilon")
    try:
        with busy("working out the noise"):
            plan = plan_dp_sgd(
                _training(options, spec, elements),
                delta=delta,
                epsilon=target,
                noise_multiplier=options.noise_multiplier,
                accountant=options.accountant or "prv",
            )
    except ValueError as error:
        raise BadInputError(str(error)) from error
    cases = () if plan.of_run is None else beside(plan.of_run)
    if json_output:
        print_json({"unit": "sample", "plan": plan, "measured": cases})
        return
    _show(plan)
    if plan.of_run is None:
        click.echo("\nGive --elements N, or a JOB with initial weights, for signal to noise and measured cases.")
        return
    click.echo("\nMeasured with linear models; your data and model may do better or worse:")
    for case in cases:
        click.echo(f"  {case.sentence}")


def _training(options: SampleOptions, spec: JobSpec | None, elements: int | None) -> DpSgdTraining:
    from atoll.accounting import DpSgdTraining  # noqa: PLC0415

    if options.rows is None or options.batch is None:
        missing = "--rows" if options.rows is None else "--batch"
        raise BadInputError(f"{missing} is missing", "a plan of DP-SGD needs --rows and --batch of one participant")
    if options.epochs is not None and options.steps is not None:
        raise BadInputError("--epochs and --steps exclude each other", "give one of them")
    rounds = options.rounds or (None if spec is None else spec.job.rounds)
    if rounds is None:
        raise BadInputError("--rounds is missing", "give it, or a JOB")
    participants = options.participants or (1 if spec is None else spec.cohort.size)
    if options.steps is not None:
        return DpSgdTraining(options.rows, options.batch, rounds, options.steps, participants, elements)
    return DpSgdTraining.of_epochs(
        options.rows, options.batch, rounds, options.epochs or 1, participants=participants, elements=elements
    )


def _show(plan: DpSgdPlan) -> None:
    training, spent = plan.training, bound(plan.epsilon, _DIGITS)
    fixed = f"{bound(plan.epsilon_fixed, _DIGITS)} if the number of steps was fixed beforehand"
    rows = [
        ("unit", f"one row of a participant's {training.rows}"),
        (
            "epsilon, delta",
            f"{spent}, {figure(plan.delta)} by the participant's own ledger ({plan.accountant}); {fixed}",
        ),
        ("steps", _steps_words(training)),
        ("each row", f"is in a step with probability {training.sample_rate:.4g}, batch {training.batch}"),
        ("noise multiplier", f"{plan.noise_multiplier:.4g}, in each step and element, over max_grad_norm"),
    ]
    print_table(("promise", ""), rows, "")
    if plan.of_step is not None:
        click.echo()
        print_table(("noise averages out over", "signal/noise, at best>"), _ratio_rows(plan), "")
    click.echo(
        f"\nThe participant's setting: DpSgd(noise_multiplier={plan.noise_multiplier:.7g}, max_grad_norm=1.0, "
        f'limit=Limit(epsilon={bound(plan.epsilon, _DIGITS)}, delta={plan.delta:g}), accountant="{plan.accountant}")'
    )


def _steps_words(training: DpSgdTraining) -> str:
    return f"{training.steps}: {counted(training.rounds, 'round')} of {counted(training.steps_per_round, 'step')}"


def _ratio_rows(plan: DpSgdPlan) -> list[tuple[str, str]]:
    training = plan.training
    found = (
        ("one step of one participant", plan.of_step),
        (f"its update: {counted(training.steps_per_round, 'step')}", plan.of_update),
        (f"the mean of {counted(training.participants, 'participant')}", plan.of_round),
        (f"the run: {counted(training.rounds, 'round')}", plan.of_run),
    )
    return [(what, f"{ratio:.3g}") for what, ratio in found if ratio is not None]
