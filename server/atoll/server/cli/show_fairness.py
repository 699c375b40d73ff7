"""``atoll run show --by-participant``: how evaluations differ between participants."""

from __future__ import annotations

from collections.abc import Iterator

import click

from atoll.operator.errors import BadInputError
from atoll.operator.run_job import job_of
from atoll.server.cli.output import print_json, print_table
from atoll.server.control import RunDetail
from atoll.server.control.fairness import Evaluated, Spread, by_participant, evaluated_metrics, spreads

_PARTICIPANTS = ("participant", "organisation", "rounds>", "examples>", "last>")
_ROUNDS = ("round>", "participants>", "min>", "median>", "max>", "spread>")


def show_by_participant(detail: RunDetail, metric: str | None, *, last: int, json_output: bool) -> None:
    """Print each participant's last evaluation by ``metric`` (None: the job's, or the first), and its spread by round.

    Raises:
        BadInputError: for a private run, which keeps no participants' evaluations, for an unknown metric, or for a job
            that this version cannot read.
    """
    spec = job_of(detail)
    if spec.privacy is not None:
        raise BadInputError(
            "a private run has no evaluations by participant: they are neither sent nor kept",
            "the server's evaluator (evaluation.server) measures its models",
        )
    known = evaluated_metrics(detail.rounds)
    decides = None if spec.best is None else spec.best[0]
    chosen = metric or (decides if decides in known else next(iter(known), None))
    if chosen is None or chosen not in known:
        raise BadInputError(
            f"no participant has evaluated {chosen or 'a model'}; evaluated metrics: {', '.join(known) or 'none'}",
            "choose one of these with --metric" if known else "implement `evaluate` in the participants",
        )
    participants, rounds = by_participant(detail.rounds, chosen), spreads(detail.rounds, chosen)
    if json_output:
        print_json({"metric": chosen, "participants": participants, "rounds": rounds})
        return
    click.echo(f"{chosen} on each participant's own data, the lowest first")
    print_table(_PARTICIPANTS, _participant_rows(participants), "")
    print_table(_ROUNDS, _rounds(rounds[-last:]), "")


def _participant_rows(found: tuple[Evaluated, ...]) -> Iterator[tuple[str, ...]]:
    for one in found:
        yield (one.participant, one.organisation, str(one.rounds), f"{one.examples:,}", f"{one.last:.4f}")


def _rounds(found: tuple[Spread, ...]) -> Iterator[tuple[str, ...]]:
    for one in found:
        figures = (one.minimum, one.median, one.maximum, one.width)
        yield (str(one.round + 1), str(one.participants), *(f"{value:.4f}" for value in figures))
