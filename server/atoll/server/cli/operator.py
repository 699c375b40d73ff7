"""``atoll operator``: credentials and roles of operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from atoll.operator import Operator
from atoll.operator.errors import BadInputError
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Group
from atoll.server.cli.output import json_option, print_json, print_table, styled, when
from atoll.server.cli.sign_in import login, logout
from atoll.server.cli.token import lifetime_s
from atoll.server.control import Myself, OperatorSummary, ProjectRoleSummary
from atoll.server.identity import CredentialError
from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.operator.server_operators import OperatorRoleName

ROLES = ["viewer", "operator", "privacy-officer", "administrator"]
ROLE = click.Choice(ROLES)
organisation_option = click.option(
    "--organisation",
    default="",
    help="Limit the role to the participants and join tokens of this organisation of the project.",
)


_NOWHERE = "unspecified"


def _role(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else value.replace("-", "_")


def _words(role: str) -> str:
    if role == _NOWHERE:
        return "without a role"
    words = role.replace("_", " ")
    return f"an {words}" if words[:1] in "ao" else f"a {words}"


@click.group(cls=Group)
def operator() -> None:
    """Create, list and revoke operators' credentials, and set their roles."""


operator.add_command(login)
operator.add_command(logout)


@operator.command()
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File for the credential (mode 0600), with a private key that is created here and stored nowhere else.",
)
@click.option(
    "--expires",
    callback=lifetime_s,
    default="90d",
    show_default=True,
    help="Validity: 12h, 7d; at most 90d.",
)
@click.option(
    "--role",
    type=ROLE,
    callback=_role,
    help="Role in the project, or in all (default: operator). A renewal keeps yours.",
)
@organisation_option
@json_option
@connected
def new(
    client: Operator,
    *,
    name: str,
    output: Path,
    expires: float,
    role: OperatorRoleName | None,
    organisation: str,
    json_output: bool,
) -> None:
    """Create a credential for operator NAME. Your own NAME renews yours; the old one stays valid until it expires."""
    if output.exists():
        raise BadInputError(f"{output} exists already", "choose a new file: credentials are never written over another")
    made = client.make_operator(name, expires, role=role, organisation=organisation)
    try:
        made.credential.write(output)
    except CredentialError as error:
        raise BadInputError(str(error), f"revoke it: atoll operator revoke {name}") from error
    if json_output:
        print_json({"name": name, "credential": str(output), "expires_at": made.expires_at})
    else:
        click.echo(f"wrote the credential of operator {name} to {output}, good until {when(made.expires_at)}")
        click.echo(f"{name} keeps it as ~/.config/atoll/operator.json, or passes it with --credentials")


@operator.command("list")
@json_option
@connected
def list_operators(client: Operator, *, json_output: bool) -> None:
    """List the operators, except those whose credentials expired long ago."""
    found = client.operators()
    if json_output:
        print_json(found)
        return
    print_table(
        ("operator", "role", "state", "since", "good until", "credentials>", "reason"),
        (
            (
                item.name,
                _roles(item),
                styled(_state(item)),
                when(item.issued_at),
                when(item.expires_at),
                item.certificates,
                item.revoked_reason,
            )
            for item in found
        ),
        "no operator has a credential: the server runs without certificates (--insecure)",
    )


@operator.command("role")
@click.argument("name")
@click.argument("new_role", metavar="ROLE", type=click.Choice([*ROLES, "none"]), callback=_role)
@organisation_option
@json_option
@connected
def role_(
    client: Operator, *, name: str, new_role: OperatorRoleName | Literal["none"], organisation: str, json_output: bool
) -> None:
    """Give operator NAME the ROLE viewer, operator, privacy-officer or administrator, effective from its next call.

    With --project, the role is for that project only, and the ROLE none removes it there.
    """
    role = None if new_role == "none" else new_role
    changed = client.set_operator_role(name, role, organisation=organisation)
    if json_output:
        print_json(changed)
    else:
        within = ", ".join(map(_in_project, changed.projects))
        nothing = f"operator {name} has no role of its own in the project now; a role in all projects holds there"
        click.echo(nothing if role is None else f"operator {name} is {within or _words(changed.role)}")


@operator.command()
@json_option
@connected
def whoami(client: Operator, *, json_output: bool) -> None:
    """Show your identity and permissions on the server."""
    found = client.whoami()
    if json_output:
        print_json(found)
        return
    where = f" in project {found.project}" if found.project else ""
    click.echo(f"{found.name}, {_words(found.role)}{where} at {client.address}, by {found.credential}")
    if found.projects:
        click.echo(f"roles in projects: {', '.join(map(_in_project, found.projects))}")
    for line in _allowed(found):
        click.echo(line)


@operator.command()
@click.argument("name")
@click.option("--reason", default="", help="Reason, which is recorded and shown to the operator.")
@json_option
@connected
def revoke(client: Operator, *, name: str, reason: str, json_output: bool) -> None:
    """Revoke operator NAME at once, including all its credentials and its unused join tokens."""
    done = client.revoke_operator(name, reason)
    if json_output:
        print_json(done)
        return
    void = f"; voided {counted(done.voided_tokens, 'unused join token')} that it made"
    click.echo(f"operator {name} is revoked{void if done.voided_tokens else ''}")


def _roles(item: OperatorSummary) -> str:
    within = [one.role.replace("_", " ") + f" in {one.project}" for one in item.projects]
    return ", ".join([*([] if item.role == _NOWHERE else [item.role.replace("_", " ")]), *within])


def _allowed(found: Myself) -> Iterator[str]:
    """What the operator may do: in the project that commands are about or in all, and for the server as a whole."""
    if found.role != _NOWHERE:
        own = next((one for one in found.projects if one.project == found.project), None)
        limited = f" for {own.organisation}" if own is not None and own.organisation else ""
        where = f" in project {found.project}{limited}" if found.project else ""
        yield f"may read{where}, and: {', '.join(found.actions)}" if found.actions else f"may read{where}"
    elif found.projects:
        yield f"what it may do depends on the project: --project {' or '.join(one.project for one in found.projects)}"
    if found.server_actions:
        yield f"may, for the server as a whole: {', '.join(found.server_actions)}"


def _in_project(given: ProjectRoleSummary) -> str:
    limited = f" for {given.organisation}" if given.organisation else ""
    return f"{_words(given.role)} in {given.project}{limited}"


def _state(item: OperatorSummary) -> str:
    if item.certificates:
        return "in force"
    return "revoked" if item.revoked_at is not None else "expired"
