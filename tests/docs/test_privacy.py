"""docs/privacy.md continues README's quick start, and its job file is valid."""

from __future__ import annotations

import re
from pathlib import Path

from atoll.server.jobs import parse_job
from atoll.server.privacy.deriving import contract_of

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
SEQUENCE = PAGE[PAGE.index("## A private run") : PAGE.index("## What is promised")]
ANYWHERE = {"plan", "verify", "audit"}
"""Commands of `atoll privacy` that need no server."""


def test_the_job_is_valid_and_meets_its_target() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", SEQUENCE, re.MULTILINE | re.DOTALL)
    spec = parse_job(text.encode(), "private.toml")
    assert spec.model is not None
    assert f'save_file as s; s({{"weight": np.zeros(8, "f4")}}, "{spec.model.initial}")' in README
    assert spec.straggler.report_window_s * spec.job.rounds <= 60
    contract = contract_of(spec)
    assert contract is not None
    assert contract.epsilon_after(spec.job.rounds) <= 8.0


def test_commands_name_what_the_quick_start_made() -> None:
    commands = re.findall(r"^(atoll .*?)(?:  #.*)?$", SEQUENCE, re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        words = command.split()
        if words[1] == "client":
            assert f"--state {words[-1]} " in README
        elif words[2] not in ANYWHERE:
            assert "--data federation" in command
            assert "atoll server start --data federation" in README
