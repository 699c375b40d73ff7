"""Launch files of silo jobs: their syntax, that their options exist, and that the job files are valid."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from atoll.datacenter.cli.train import train
from atoll.datacenter.job import load_job
from atoll.datacenter.mesh.validate import check_layout

SILO = Path(__file__).parents[2] / "examples" / "silo"


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sbatch"])
def test_scripts_are_bash(name: str) -> None:
    done = subprocess.run(("bash", "-n", str(SILO / name)), capture_output=True, text=True, check=False)  # noqa: S607  # the system's own
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("job", sorted(SILO.glob("*.toml")), ids=lambda path: path.stem)
def test_job_files_are_valid(job: Path) -> None:
    load_job(job)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_small_job_fits_small_machines(ranks: int) -> None:
    assert check_layout(load_job(SILO / "small.toml"), ranks).world_size == ranks


def test_slurm_and_kubernetes_give_the_command_options_that_it_has() -> None:
    slurm = (SILO / "slurm.sbatch").read_text(encoding="utf-8").partition("atoll silo train")[2].replace("\\\n", " ")
    known = {option for parameter in train.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", slurm)) <= known
    parse(["job.toml" if word == "$job" else word for word in shlex.split(slurm)])
    parse(container()["command"][3:])


def parse(arguments: list[str]) -> None:
    """Bad options and bad values raise; whether files exist is not asked."""
    here = [str(SILO / "small.toml"), *arguments[1:]]
    numbers = [word.replace("$SLURM_NNODES", "4") for word in here]
    train.make_context("train", numbers)


def test_torchrun_knows_the_options_of_its_script() -> None:
    text = (SILO / "torchrun.sh").read_text(encoding="utf-8")
    words = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "), comments=True)[2:]
    given = get_args_parser().parse_args([word if word != "$processes" else "2" for word in words])
    assert given.training_script == "atoll.datacenter.train"
    assert given.module


def test_kubernetes_is_a_service_and_an_indexed_job_that_find_each_other() -> None:
    service, job = yaml.safe_load_all((SILO / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    meet = next(word for word in container()["command"] if word.startswith("--meet="))
    assert meet == f"--meet={job['metadata']['name']}-0.{pod['subdomain']}:{service['spec']['ports'][0]['port']}"
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def container() -> dict[str, Any]:
    _, job = yaml.safe_load_all((SILO / "kubernetes.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found
