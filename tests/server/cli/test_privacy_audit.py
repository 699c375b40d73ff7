from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.server.cli.privacy_audit import audit

pytestmark = pytest.mark.slow

JOB = """
[job]
name = "digits"
rounds = 4
[model]
initial = "initial.safetensors"
[cohort]
size = 50
sampler = "poisson"
rate = 0.5
quorum = 0
[aggregation]
weighting = "uniform"
[evaluation]
before_training = false
final = false
every = 0
"""
PRIVACY = """
[privacy]
population = "digits"
epsilon = 4.0
delta = 1e-5
clip = 0.5
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(audit, arguments)


def test_a_claim_that_holds_is_not_refuted() -> None:
    result = run("--noise-multiplier", "1", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert 1.0 < found["epsilon_at_least"] < found["claimed"] < found["shows"]
    assert found["refuted"] is False


@pytest.mark.parametrize("switch", ["--without-noise", "--without-clipping"])
def test_a_safeguard_that_is_off_is_missed(switch: str) -> None:
    result = run("--noise-multiplier", "1", switch)
    assert result.exit_code == 1
    assert "switched off" in result.stdout
    assert "claim is false" in result.stderr


def test_statistics_are_not_audited_as_models(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    section = '[statistics]\nnumeric = ["a"]\nbounds = { a = [0, 1] }\nmax_rows = 9\n'
    promise = PRIVACY.replace("clip = 0.5", "unit = 'row'")
    job.write_text(f'[job]\nname = "x"\n[cohort]\nsize = 4\n{section}{promise}')
    result = run(str(job))
    assert result.exit_code == 2
    assert "canaries are updates of models" in result.stderr


def test_a_job_is_audited_as_it_would_run(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB + PRIVACY)
    found = json.loads(run(str(job), "--json").stdout)
    assert (found["rounds"], found["mechanism"], found["refuted"]) == (4, "gaussian", False)
    assert 3.9 < found["claimed"] <= 4.0


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    for arguments, reason in (
        ((), "nothing to audit"),
        ((str(job), "--epsilon", "3"), "too much"),
        ((str(job),), "promises no privacy"),
        (("--noise-multiplier", "0.1"), "could not refute"),
        (("--epsilon", "3", "--canaries", "77"), "powers of two"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert reason in result.stderr
