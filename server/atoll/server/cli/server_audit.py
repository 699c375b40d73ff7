"""``atoll server audit``: the audit log of operators' actions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from atoll.operator import Operator
from atoll.operator.errors import OperatorError
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command
from atoll.server.cli.output import json_option, print_json, print_table, styled, when
from atoll.server.control import AuditEntry
from atoll.text.figures import counted

OUTCOMES = ("done", "refused", "failed", "interrupted")
_ENTRIES = 50
_COLUMNS = ("entry>", "when", "operator", "action", "about", "detail", "outcome", "from", "by")
_MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"])


@click.command(cls=Command)
@click.option("-n", "--entries", type=click.IntRange(1), default=_ENTRIES, show_default=True, help="Number of entries.")
@click.option("--all", "every", is_flag=True, help="All stored entries.")
@click.option("--operator", default="", help="Only actions of this operator.")
@click.option("--action", default="", help="Only this action (run.cancel), or all of a kind (run).")
@click.option(
    "--subject", default="", help="Only entries about this subject: the id of a run or participant, or a name."
)
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only entries with this outcome.")
@click.option("--since", type=_MOMENT, help="Only entries since this local time.")
@click.option("--until", type=_MOMENT, help="Only entries before this local time.")
@click.option("--verify", is_flag=True, help="Verify the whole chain instead; exit code 1 if an entry does not fit.")
@json_option
@connected
def audit(client: Operator, *, entries: int, every: bool, verify: bool, json_output: bool, **chosen: Any) -> None:
    """Show operators' actions, the newest first; participants' actions are in the server's log."""
    if verify:
        _verify(client, json_output=json_output)
        return
    given = {name: value for name, value in chosen.items() if value is not None}
    filters: dict[str, Any] = {
        name: value.timestamp() if isinstance(value, datetime) else value for name, value in given.items()
    }
    found = tuple(client.audit(None if every else entries, **filters))
    if json_output:
        print_json(found)
        return
    several = any(one.project for one in found)
    print_table(
        (*_COLUMNS, "project") if several else _COLUMNS,
        ((*_row(one), one.project or "-") if several else _row(one) for one in found),
        "the audit log has no such entry",
    )


def _row(one: AuditEntry) -> tuple[object, ...]:
    return (
        one.seq,
        when(one.at),
        one.operator,
        one.action,
        one.subject,
        one.detail,
        styled(one.outcome) if not one.code else f"{one.outcome}: {one.code}",
        one.address or "-",
        one.credential or "-",
    )


def _verify(client: Operator, *, json_output: bool) -> None:
    chain = client.audit_chain()
    if json_output:
        print_json(chain)
    else:
        click.echo(f"{counted(chain.entries, 'entry', 'entries')} from {chain.first} on, head {chain.head}")
    if chain.flaw:
        raise OperatorError(chain.flaw, "compare it with a backup, and with digests that you noted")
