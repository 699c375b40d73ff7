"""docs/command-line.md against the code: every command, key and exit code of the operator's side is in it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click
import pytest

from atoll.server.cli import errors
from atoll.server.cli.checks import Finding
from atoll.server.cli.demo import Summary, demo
from atoll.server.cli.demo_private import PrivateSummary
from atoll.server.cli.doctor import doctor
from atoll.server.cli.operator import operator
from atoll.server.cli.participants import participants
from atoll.server.cli.privacy import privacy
from atoll.server.cli.privacy_audit import Audited
from atoll.server.cli.privacy_verify import Chain
from atoll.server.cli.run import run
from atoll.server.cli.token import token
from atoll.server.control import (
    Charge,
    Member,
    NewTokens,
    Operator,
    Participant,
    ParticipantPrivacy,
    ParticipantRun,
    PopulationSpending,
    Progress,
    RevokedOperator,
    Round,
    Run,
    RunDetail,
    RunSpending,
    Token,
)
from atoll.server.privacy.contract import AdaptiveClipping, Contract
from atoll.server.privacy.planning import Alternative, Plan, Spent

TEXT = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "kind",
    [
        *(
            Run,
            Round,
            Member,
            RunDetail,
            Progress,
            Token,
            NewTokens,
            Participant,
            Operator,
            RevokedOperator,
            Finding,
            Summary,
        ),
        *(PopulationSpending, RunSpending, Charge, ParticipantPrivacy, ParticipantRun, Chain),
        *(Plan, Spent, Alternative, Contract, AdaptiveClipping, Audited, PrivateSummary),
    ],
)
def test_every_key_is_documented(kind: type) -> None:
    missing = [item.name for item in fields(kind) if f"`{item.name}`" not in TEXT and f'"{item.name}"' not in TEXT]
    assert not missing


@pytest.mark.parametrize("command", [token, operator, participants, run, privacy, doctor, demo])
def test_every_command_is_documented(command: click.Command) -> None:
    names = command.commands if isinstance(command, click.Group) else {}
    expected = [f"{command.name} {name}" for name in names] or [f"atoll {command.name}"]
    assert not [name for name in expected if name not in TEXT]


def test_every_exit_code_is_documented() -> None:
    kinds: list[type[errors.CommandError]] = [errors.CommandError, *errors.CommandError.__subclasses__()]
    assert sorted(kind.exit_code for kind in kinds) == [1, 2, 3, 4, 5, 130]
    assert not [kind for kind in kinds if f"| {kind.exit_code} |" not in TEXT]


def commands() -> list[click.Command]:
    groups = [token, operator, participants, run, privacy]
    return [*(item for group in groups for item in group.commands.values()), doctor, demo]


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_every_command_and_option_explains_itself(command: click.Command) -> None:
    assert command.help
    options = [item for item in command.params if isinstance(item, click.Option) and item.name != "kind"]
    assert not [option.name for option in options if not option.help]


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_json_wherever_data_is_printed(command: click.Command) -> None:
    flags = {flag for item in command.params for flag in item.opts}
    assert "--json" in flags or command.name == "report"
