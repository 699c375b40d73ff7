"""``atoll project``: projects isolate teams that share a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from atoll.operator import Operator, ProjectQuota, ProjectSummary
from atoll.operator.chosen_project import choose_project
from atoll.operator.errors import BadInputError
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Group
from atoll.server.cli.output import json_option, print_json, print_table, when
from atoll.text.figures import counted

GB = 1_000_000_000
NONE = "none"
HIDDEN = "not shown"
"""In place of a figure that a role for one organisation does not see."""
R = TypeVar("R")


class _Quota(click.ParamType[float | str]):
    """A number of at least 0, or ``none``."""

    name = "NUMBER|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return the number, or ``none`` unchanged."""
        if value == NONE:
            return NONE
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1e9:
            self.fail(f"{value!r}: allowed is a number from 0 on, or {NONE}", param, ctx)
        return found


def quota_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options of quotas."""
    for option in (
        click.option("--stored-gb", type=_Quota(), help="Maximum gigabytes of models and optimiser states."),
        click.option(
            "--participants",
            type=_Quota(),
            help="Maximum number of unrevoked participants, including unused join tokens.",
        ),
        click.option("--runs", type=_Quota(), help="Maximum number of runs that have not ended."),
    ):
        function = option(function)
    return function


@click.group(cls=Group)
def project() -> None:
    """Create, list, limit and close projects, and choose the default project of commands."""


@project.command()
@click.argument("name")
@quota_options
@json_option
@connected
def new(client: Operator, *, name: str, json_output: bool, **quotas: Any) -> None:
    """Create project NAME. Without quotas it is unlimited."""
    made = client.make_project(name, _changed(ProjectQuota(), quotas))
    if json_output:
        print_json(made)
        return
    click.echo(f"project {name} is made, {_quota_words(made)}")
    click.echo(f"give an operator a role in it: atoll operator new NAME -o FILE --project {name} --role administrator")


@project.command("list")
@json_option
@connected
def list_projects(client: Operator, *, json_output: bool) -> None:
    """List the projects in which you have a role."""
    found = client.projects()
    if json_output:
        print_json(found)
        return
    print_table(
        ("project", "state", "runs>", "participants>", "connected>", "stored GB>", "made by", "made"),
        (
            (
                one.project,
                "open" if one.closed_at is None else "closed",
                _of(one.runs, one.quota.runs),
                _of(one.participants, one.quota.participants),
                one.connected,
                _stored(one),
                one.created_by,
                when(one.created_at) if one.created_at else "",
            )
            for one in found
        ),
        "you have a role in no project",
    )


@project.command()
@click.argument("name")
@json_option
@connected
def show(client: Operator, *, name: str, json_output: bool) -> None:
    """Show project NAME, its contents and quotas."""
    found = client.find_project(name)
    if json_output:
        print_json(found)
        return
    state = "open" if found.closed_at is None else f"closed since {when(found.closed_at)}"
    made = f", made by {found.created_by} at {when(found.created_at)}" if found.created_at else ""
    click.echo(f"project {name}: {state}{made}")
    click.echo(f"runs that have not ended: {_of(found.runs, found.quota.runs)}")
    click.echo(f"participants: {_of(found.participants, found.quota.participants)}, {found.connected} connected")
    click.echo(f"models: {_stored(found)}{'' if found.model_bytes is None else ' GB'}")


@project.command()
@click.argument("name")
@quota_options
@json_option
@connected
def quota(client: Operator, *, name: str, json_output: bool, **quotas: Any) -> None:
    """Change the quotas of project NAME; `none` removes one. They apply to anything that begins from now on."""
    if all(value is None for value in quotas.values()):
        raise BadInputError("no quota is given", "give --runs, --participants or --stored-gb")
    standing = client.find_project(name)
    changed = client.set_project_quota(name, _changed(standing.quota, quotas))
    if json_output:
        print_json(changed)
    else:
        click.echo(f"project {name} is {_quota_words(changed)}")


@project.command()
@click.argument("name")
@json_option
@connected
def close(client: Operator, *, name: str, json_output: bool) -> None:
    """Close project NAME permanently; its runs must have ended. It stays readable, but nothing can begin in it."""
    closed = client.close_project(name)
    if json_output:
        print_json(closed)
        return
    void = f"; {counted(closed.voided_tokens, 'unused join token')} voided" if closed.voided_tokens else ""
    click.echo(f"project {name} is closed{void}")


@project.command()
@click.argument("name", required=False)
@click.option("--none", "no_project", is_flag=True, help="Remove the default project.")
@json_option
@connected
def use(client: Operator, *, name: str | None, no_project: bool, json_output: bool) -> None:
    """Make project NAME the default of later commands at this server, unless --project or ATOLL_PROJECT is given."""
    if no_project == (name is not None):
        raise BadInputError("give the name of a project, or --none")
    if name is not None:
        client.find_project(name)
    choose_project(client.address, name or "")
    if json_output:
        print_json({"server": client.address, "project": name or ""})
    else:
        click.echo(f"commands at {client.address} are about {f'project {name}' if name else 'all your projects'}")


def _changed(standing: ProjectQuota, given: dict[str, float | str | None]) -> ProjectQuota:
    """The quotas updated with the given options."""
    fields = {"runs": ("runs", 1), "participants": ("participants", 1), "stored_gb": ("model_bytes", GB)}
    found: dict[str, int | None] = {}
    for option, value in given.items():
        name, unit = fields[option]
        if value is not None:
            found[name] = None if isinstance(value, str) else int(value * unit)
    return replace(standing, **found)


def _of(there: int | None, most: int | None) -> str:
    if there is None:
        return HIDDEN
    return f"{there:,}" if most is None else f"{there:,} of {most:,}"


def _stored(found: ProjectSummary) -> str:
    most = found.quota.model_bytes
    if found.model_bytes is None:
        return HIDDEN
    return f"{round(found.model_bytes / GB, 3):.3g}" + ("" if most is None else f" of {most / GB:.3g}")


def _quota_words(found: ProjectSummary) -> str:
    limits = found.quota
    words = [
        *([] if limits.runs is None else [counted(limits.runs, "run") + " at once"]),
        *([] if limits.participants is None else [counted(limits.participants, "participant")]),
        *([] if limits.model_bytes is None else [f"{limits.model_bytes / GB:g} GB of models"]),
    ]
    return f"limited to {', '.join(words)}" if words else "not limited"
