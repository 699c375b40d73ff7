"""``atoll privacy``: plans of private jobs, the privacy ledger, and audits."""

from __future__ import annotations

import click

from atoll.server.cli.errors import Group
from atoll.server.cli.privacy_audit import audit
from atoll.server.cli.privacy_ledger import ledger, limit
from atoll.server.cli.privacy_plan import plan
from atoll.server.cli.privacy_verify import verify


@click.group(cls=Group)
def privacy() -> None:
    """Differential privacy: plan a job, read the ledger, audit releases."""


for command in (plan, ledger, limit, verify, audit):
    privacy.add_command(command)
