"""docs/command-line.md has every command, key and exit code of the operator's side."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from atoll.accounting import DpSgdPlan, DpSgdTraining
from atoll.operator import OperatorError
from atoll.server.cli.checks import Finding
from atoll.server.cli.demo import Summary, demo
from atoll.server.cli.demo_private import PrivateSummary
from atoll.server.cli.doctor import doctor
from atoll.server.cli.errors import StoppedError
from atoll.server.cli.operator import operator
from atoll.server.cli.participants import participants
from atoll.server.cli.privacy import privacy
from atoll.server.cli.privacy_audit import Audited
from atoll.server.cli.privacy_verify import Chain
from atoll.server.cli.run import run
from atoll.server.cli.token import token
from atoll.server.control import (
    ChargeSummary,
    MemberSummary,
    Myself,
    NewTokens,
    OperatorSummary,
    ParticipantPrivacy,
    ParticipantRun,
    ParticipantSummary,
    PopulationSummary,
    Progress,
    ProjectQuota,
    ProjectSummary,
    RevokedOperator,
    RoundSummary,
    RunDetail,
    RunSpending,
    RunSummary,
    TokenSummary,
)
from atoll.server.privacy.contract import AdaptiveClipping, Contract
from atoll.server.privacy.in_turns import InTurns
from atoll.server.privacy.measured_cases import MeasuredCase
from atoll.server.privacy.planning import Alternative, Plan, SpentAfter

TEXT = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")


SECTIONS: dict[str, tuple[type, ...]] = {
    "**run**": (RunSummary,),
    "**round**": (RoundSummary,),
    "**member**": (MemberSummary,),
    "| `run show` |": (RunDetail,),
    "| `run watch` |": (Progress,),
    "| `token new` |": (NewTokens,),
    "**token**": (TokenSummary,),
    "**operator**": (OperatorSummary,),
    "| `operator list`; `operator role`; `operator whoami`; `operator revoke` |": (Myself, RevokedOperator),
    "**project**": (ProjectSummary, ProjectQuota),
    "**participant**": (ParticipantSummary,),
    "**finding**": (Finding,),
    "**summary** (`demo`)": (Summary,),
    "**summary** (`demo --private`)": (PrivateSummary,),
    "**population**": (PopulationSummary, RunSpending),
    "**charge**": (ChargeSummary,),
    "**a participant's figures**": (ParticipantPrivacy, ParticipantRun),
    "| `privacy verify` |": (Chain,),
    "**audit**": (Audited,),
    "**plan**": (Plan, SpentAfter, Alternative, InTurns),
    "**plan of samples**": (DpSgdPlan, DpSgdTraining),
    "**measured case**": (MeasuredCase,),
    "**contract**": (Contract, AdaptiveClipping),
}
"""Keys of JSON output by the place on the page: a table row, or a paragraph or table up to the next bold name."""


def section(beginning: str) -> str:
    """The part of the page that begins with these words at the start of a line."""
    start = TEXT.index(f"\n{beginning}") + 1
    ends = re.search(r"\n(?=\*\*\w|## )" if beginning.startswith("*") else r"\n", TEXT[start + 1 :])
    return TEXT[start:] if ends is None else TEXT[start : start + 1 + ends.start()]


@pytest.mark.parametrize("beginning", SECTIONS)
def test_every_key_is_documented_in_its_own_section(beginning: str) -> None:
    text = section(beginning)
    names = [item.name for kind in SECTIONS[beginning] for item in fields(kind)]
    assert not [name for name in names if f"`{name}`" not in text and f'"{name}"' not in text]


def test_every_exit_code_is_documented() -> None:
    kinds: list[type[OperatorError]] = [OperatorError, *OperatorError.__subclasses__()]
    assert StoppedError in kinds
    assert sorted({kind.exit_code for kind in kinds}) == [1, 2, 3, 4, 5, 130]
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
