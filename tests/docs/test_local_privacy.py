"""docs/privacy/local.md: its snippets run, its policies are valid, its figures are those that the code prints."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.client import Policy, RoundKey
from atoll.client._privacy.promises import Promises, path_of, read_promises
from atoll.client._privacy.randomisers import Gaussian, Sphere
from atoll.client._session.protection import protection_of
from atoll.client.cli import status
from atoll.client.cli.policy_file import read_policy
from atoll.client.opacus import OpacusParticipant
from atoll.client.settings import Settings
from atoll.client.testing import make_task, model_of
from atoll.client.torch import to_array
from atoll.server.jobs.aggregation_section import Aggregation
from tests.wire.test_privacy_terms import TERMS

PAGE = (Path(__file__).parents[2] / "docs" / "privacy" / "local.md").read_text(encoding="utf-8")
DEFAULT_MAX_ABS = Aggregation().max_abs


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def printed(label: str) -> list[str]:
    """The page's lines of ``atoll client status`` with this label, without it."""
    return [line[15:] for line in PAGE.splitlines() if line.startswith(f"{label:<14} ")]


def policy_with(key: str, folder: Path) -> Policy:
    """The page's policy that has a key."""
    (text,) = (block for block in blocks("toml") if key in block)
    path = folder / "policy.toml"
    path.write_text(text)
    return read_policy(path)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Run the page's Python blocks one after another; return the names that they define."""
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, found)  # noqa: S102  # our own page
    return found


def test_the_participant_trains_and_spends_what_the_page_says(names: dict[str, Any], tmp_path: Path) -> None:
    participant = names["participant"]
    assert isinstance(participant, OpacusParticipant)
    model = model_of({name: to_array(tensor).copy() for name, tensor in participant.module.named_parameters()})
    participant.prepare(tmp_path)
    task = make_task(run_name="digits", settings=Settings({"lr": 0.05}))
    for number in range(9):
        task = replace(task, key=RoundKey("r1", number, 0))
        assert participant.objection(task) is None
        assert participant.fit(model, task).weight == 1000
    seen = status._spent(status._ledger(participant.ledger.path))
    assert printed("privacy") == [seen]


def test_the_policy_of_noise_needs_the_job_that_the_page_gives(names: dict[str, Any], tmp_path: Path) -> None:
    policy = policy_with("[local_privacy]", tmp_path)
    assert policy == names["policy"]
    assert policy.local_privacy is not None
    protection = protection_of(policy, tmp_path, "s1")
    objection = protection.objection(make_task(max_abs=DEFAULT_MAX_ABS))
    assert f"\n> {objection}\n" in PAGE
    (job,) = (tomllib.loads(block) for block in blocks("toml") if "[aggregation]" in block)
    section = Aggregation.model_validate(job["aggregation"])
    assert protection.objection(make_task(max_abs=section.max_abs)) is None
    assert protection.objection(make_task(max_abs=section.max_abs / 2)) is not None


def test_the_other_ways_to_fit_a_run() -> None:
    reach = Sphere(1.0, clip_norm=1.0).reach
    assert f"With `sphere` at the same epsilon and norm it is {reach:.3g}, and `max_abs = 64`" in PAGE
    assert "0.35 instead of 1" in PAGE
    assert Gaussian(1.0, 1e-7, clip_norm=0.35).reach <= DEFAULT_MAX_ABS < Gaussian(1.0, 1e-7, clip_norm=0.36).reach


def test_the_demands_are_a_policy_and_their_tally_is_shown_as_on_the_page(tmp_path: Path) -> None:
    demand = policy_with("max_total_epsilon", tmp_path).privacy
    assert demand is not None
    assert demand.objection(make_task(privacy=TERMS)) is None
    promises = Promises(path_of(tmp_path), "sha256:8c1f3a52" + "0" * 56, demand.total)
    for run, epsilon in (("digits", 6.58), ("digits-again", 0.24), ("digits-tuned", 0.24)):
        terms = replace(TERMS, epsilon=epsilon, delta=1e-5, population="clinic")
        promises.keep(make_task(key=RoundKey(run, 0, 0), run_name=run, privacy=terms))
    assert read_promises(path_of(tmp_path)) is not None
    assert printed("promised") == list(status._promised(status._promises(path_of(tmp_path))))
