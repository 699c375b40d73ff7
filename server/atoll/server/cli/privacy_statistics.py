"""``atoll privacy plan`` for a job with ``[statistics]``: the noise on its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.operator.errors import BadInputError
from atoll.server.cli.errors import local_errors
from atoll.server.cli.output import print_json, print_table, steps
from atoll.text.figures import bound, counted, figure

if TYPE_CHECKING:
    from atoll.server.jobs import JobSpec
    from atoll.server.jobs.statistics_section import Statistics
    from atoll.server.privacy.statistics_plan import StatisticsPlan


def show_statistics_plan(spec: JobSpec, section: Statistics, *, json_output: bool) -> None:
    """Print the plan of a job with statistics.

    Raises:
        BadInputError: if it has no ``[privacy]``.
    """
    from atoll.server.privacy.statistics_plan import statistics_plan  # noqa: PLC0415  # imports numba

    with local_errors(), steps("working out the noise"):
        found = statistics_plan(spec, section)
    if found is None:
        raise BadInputError(
            "the job has no [privacy] section, so its figures have no noise",
            "add one: docs/statistics.md says which keys it needs",
        )
    if json_output:
        print_json(found)
        return
    print_table(("promise", ""), _rows(found), "")
    for line in found.warnings():
        click.echo(f"\n{line}")


def _rows(found: StatisticsPlan) -> list[tuple[str, str]]:
    norm = f"{found.unit_norm:.4g}, the most by which one {found.unit} moves the sums"
    needed = (f"{counted(most, 'participant')} for {share:.0%}" for share, most in found.participants_for.items())
    return [
        ("unit", f"one {found.unit}"),
        ("epsilon, delta", f"{bound(found.epsilon, 5)}, {figure(found.delta)} in one round"),
        ("noise multiplier", f"{found.noise_multiplier:.4g}"),
        ("norm", norm),
        ("standard error of each count", f"{found.noise_on_count:.4g} rows, of at most {found.most_rows}"),
        ("a share of all rows, at best", f"{found.share:.2%}"),
        ("participants of max_rows rows", ", ".join(needed)),
    ]
