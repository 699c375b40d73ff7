"""``atoll silo join`` refuses jobs that cannot take part, in one line and before a process starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.client._state.files import locked
from atoll.datacenter.cli.join import join

pytestmark = pytest.mark.slow

JOB = """
[job]
name = "small"
steps = 8
[model]
layers = 1
dim = 32
heads = 4
"""
PRIVATE = "[privacy]\nnoise_multiplier = 1.0\n"
INSECURE = ("--insecure", "--server", "127.0.0.1:1", "--participant", "pabcdefghijkl")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def refusal(job: Path, *options: str) -> str:
    """Return the message; no process may have been started."""
    state = () if "--state" in options else ("--state", str(job.parent / "state"))
    result = CliRunner().invoke(join, [str(job), *state, *options])
    assert result.exit_code == 2, result.output
    assert not (job.parent / "logs").exists()
    assert "Traceback" not in result.output
    return result.output


def test_without_an_identity_it_says_how_to_get_one(job: Path) -> None:
    said = refusal(job)
    assert said.startswith("error: ")
    assert "--join" in said


def test_with_json_it_says_so_in_json(job: Path) -> None:
    found = json.loads(refusal(job, "--json"))
    assert found["outcome"] == "failed"
    assert "--join" in found["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--join", "not-a-token"), "token"),
        (("--insecure", "--server", "127.0.0.1:1"), "participant"),
        (("--insecure", "--participant", "pabcdefghijkl"), "server"),
        (("--participant", "pabcdefghijkl"), "--insecure"),
        (("--insecure", "--server", "example.com:1", "--participant", "pabcdefghijkl"), "loopback"),
        (("--join", "@missing"), "missing"),
        ((*INSECURE, "--policy", "missing.toml"), "missing.toml"),
        ((*INSECURE, "--nproc", "3", "--max-rounds", "-1"), "max-rounds"),
        ((*INSECURE, "--nnodes", "2"), "--meet"),
    ],
)
def test_bad_options(job: Path, options: tuple[str, ...], words: str) -> None:
    assert words in refusal(job, *options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[federation]\ninner_step = 5\n", "federation.inner_step"),
        ("[federation]\ninner_steps = 0\n", "inner_steps"),
        ("[federation]\ninner_steps = 4\noverlap_steps = 4\n", "overlap_steps"),
        ("[mesh]\ntp = 4\n", "start a multiple of 4"),
        ('[asynchrony]\nmethod = "hogwild"\n', "[asynchrony]"),
        (
            '[mesh]\ndp_replicate = 2\n[data_parallel]\nmethod = "ddp"\n[faults]\nrecovery = "in-place"\n',
            "is not available in a federation",
        ),
        (PRIVATE, "needs a limit"),
        (f"{PRIVATE}limit = 8.0\n[federation]\noverlap_steps = 1\n", "before a round asks for them"),
    ],
)
def test_bad_jobs(job: Path, more: str, words: str) -> None:
    job.write_text(JOB + more, encoding="utf-8")
    assert words in refusal(job, *INSECURE, "--nproc", "2")


def test_a_policy_that_wants_whole_updates_noised(job: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[local_privacy]\nmechanism = "sphere"\nepsilon = 1.0\nclip_norm = 1.0\nmax_epsilon = 8.0\n', encoding="utf-8"
    )
    assert "each rank of a silo sends a part" in refusal(job, *INSECURE, "--policy", str(policy))


def test_a_state_that_another_process_works_in(job: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "state"):
        assert "already works in" in refusal(job, *INSECURE)
