"""Shell completion: asks the server, for at most a few seconds, and is silent on errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from atoll.operator import Operator, OperatorError, Run, Timeouts
from atoll.operator.ledger import LATEST
from atoll.server.control.best import judging_metrics

MOST = 50
"""Maximum number of runs to offer; the newest are offered."""
PATIENCE = Timeouts(call_s=3.0)
Item = TypeVar("Item")


def complete_runs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``latest``, and the ids and names of the newest runs that begin with ``incomplete``."""
    return [item for item in _runs(context) if item.value.startswith(incomplete)]


run_argument = click.argument("run_id", metavar="RUN", shell_complete=complete_runs)
"""The argument RUN: a run's id or name, or ``latest``."""


def complete_participants(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of participants that begin with ``incomplete``, or whose organisation does."""
    found = _asked(context, lambda operator: [(one.participant, one.organisation) for one in operator.participants()])
    return [
        CompletionItem(participant, help=organisation)
        for participant, organisation in found
        if incomplete in ("", organisation[: len(incomplete)], participant[: len(incomplete)])
    ]


def complete_metrics(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The metrics that can select a model of the run RUN."""
    found = _asked(context, lambda operator: judging_metrics(_run_named(operator, context).detail().rounds))
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def complete_models(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The numbers of rounds after which the run RUN released a model, newest first; 0 for the initial model."""
    found = _asked(context, lambda operator: range(_run_named(operator, context).summary().rounds_released, -1, -1))
    return [CompletionItem(str(number)) for number in found if str(number).startswith(incomplete)][:MOST]


def _run_named(operator: Operator, context: click.Context) -> Run:
    return operator.run(context.params.get("run_id") or LATEST)


def _runs(context: click.Context) -> Iterator[CompletionItem]:
    found = _asked(context, lambda operator: [(run.run, run.name, run.status) for run in operator.runs(MOST)])
    if found:
        yield CompletionItem(LATEST, help=f"{found[0][1]}, {found[0][2]}")
    names = [name for _, name, _ in found]
    for run, name, status in found:
        yield CompletionItem(run, help=f"{name}, {status}")
        if names.count(name) == 1:
            yield CompletionItem(name, help=f"{run}, {status}")


def _asked(context: click.Context, question: Callable[[Operator], Sequence[Item]]) -> Sequence[Item]:
    """The server's answer; empty on errors, which a shell does not show."""
    given = context.params
    try:
        with Operator.connect(
            given.get("server"),
            credential=given.get("credentials"),
            data=given.get("data"),
            insecure=bool(given.get("insecure")),
            project=given.get("project"),
            timeouts=PATIENCE,
        ) as operator:
            return question(operator)
    except OperatorError:
        return []
