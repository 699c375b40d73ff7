"""Options of commands that choose the best model of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from atoll.operator.errors import BadInputError
from atoll.server.cli.completion import complete_metrics

F = TypeVar("F", bound=Callable[..., Any])


def best_options(function: F) -> F:
    """The options ``--best``, and ``--metric`` and ``--mode`` to override the job's."""
    modes = click.Choice(["max", "min"])
    made = click.option("--mode", type=modes, help="With --metric: whether higher or lower values are better.")(
        function
    )
    made = click.option(
        "--metric",
        metavar="NAME",
        shell_complete=complete_metrics,
        help="With --best: another metric, eval/NAME or server/NAME.",
    )(made)
    words = "The best model by the metric that the job names, or by --metric."
    return click.option("--best", is_flag=True, help=words)(made)


def check_best(*, best: bool, metric: str | None, mode: str | None) -> None:
    """Refuse a metric or mode without ``--best``.

    Raises:
        BadInputError: names the option to add.
    """
    if (metric or mode) and not best:
        raise BadInputError("--metric and --mode say which model is the best one", "add --best")
