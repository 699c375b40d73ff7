"""Launch files of silo jobs: their syntax, that their options exist, and that the job files are valid."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from torch.distributed.run import get_args_parser

from atoll.client._connection.identity import FILE_NAME
from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.cli.enrol import enrol
from atoll.datacenter.cli.join import join
from atoll.datacenter.cli.train import train
from atoll.datacenter.job import load_job
from atoll.server.jobs import parse_job

SILO = Path(__file__).parents[2] / "examples" / "silo"


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sbatch", "slurm-join.sbatch"])
def test_scripts_are_bash(name: str) -> None:
    done = subprocess.run(("bash", "-n", str(SILO / name)), capture_output=True, text=True, check=False)  # noqa: S607  # the system's own
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("job", sorted(SILO.glob("*.toml")), ids=lambda path: path.stem)
def test_job_files_are_valid(job: Path) -> None:
    load_job(job)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_small_job_fits_small_machines(ranks: int) -> None:
    assert check_layout(load_job(SILO / "small.toml"), ranks).world_size == ranks


@pytest.mark.parametrize(
    ("command", "slurm", "kubernetes"),
    [(train, "slurm.sbatch", "kubernetes.yaml"), (join, "slurm-join.sbatch", "kubernetes-join.yaml")],
)
def test_slurm_and_kubernetes_give_the_command_options_that_it_has(
    command: click.Command, slurm: str, kubernetes: str
) -> None:
    text = (SILO / slurm).read_text(encoding="utf-8").partition(f"srun --kill-on-bad-exit=0 atoll silo {command.name}")
    given = text[2].partition(" ||")[0]
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", given)) <= known
    parse(command, shlex.split(given.replace("\\\n", " ")))
    words = container(kubernetes)["command"]
    assert words[:3] == ["atoll", "silo", command.name]
    parse(command, words[3:])


@pytest.mark.parametrize(("ends", "queued"), [(143, True), (0, False), (1, False)])
def test_a_silo_that_slurm_stops_goes_back_into_the_queue(ends: int, queued: bool, tmp_path: Path) -> None:
    tools = {"srun": f"exit {ends}", "scontrol": 'echo "$*"'}
    for name, does in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
    done = subprocess.run(
        ("bash", str(SILO / "slurm-join.sbatch"), "job.toml", "state"),  # noqa: S607  # the system's own
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ends, "requeue 7\n" if queued else ""), done.stderr


def parse(command: click.Command, arguments: list[str]) -> None:
    """Bad options and bad values raise; whether files exist is not asked."""
    here = [str(SILO / "small.toml"), *arguments[1:]]
    command.make_context(command.name, [word.replace("$SLURM_NNODES", "4") for word in here])


def test_a_silo_enrols_where_its_machines_look_for_its_identity() -> None:
    enrolling = documents("kubernetes-join.yaml")[0]
    pod = enrolling["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert words[:3] == ["atoll", "silo", "enrol"]
    assert enrol.make_context("enrol", words[3:]).params["state"] == Path("/silo/state")
    assert "--state=/silo/state" in container("kubernetes-join.yaml")["command"]
    looked_for = documents("kubernetes-join.yaml")[-1]["spec"]["template"]["spec"]["initContainers"][0]["command"]
    assert looked_for == ["test", "-s", f"/silo/state/{FILE_NAME}"]


def test_the_operators_job_starts_from_the_model_of_the_silos_job() -> None:
    spec = parse_job((SILO / "operator" / "text.toml").read_bytes())
    job = load_job(SILO / "join.toml")
    assert spec.training["inner_steps"] == job.federation.inner_steps
    assert job.job.steps == spec.job.rounds * job.federation.inner_steps
    assert spec.aggregation.max_weight >= job.federation.inner_steps * job.batch.global_batch * job.batch.sequence


def test_torchrun_knows_the_options_of_its_script() -> None:
    text = (SILO / "torchrun.sh").read_text(encoding="utf-8")
    words = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "), comments=True)[2:]
    given = get_args_parser().parse_args([word if word != "$processes" else "2" for word in words])
    assert given.training_script == "atoll.datacenter.train"
    assert given.module


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-join.yaml"])
def test_kubernetes_is_a_service_and_an_indexed_job_that_find_each_other(name: str) -> None:
    service = next(document for document in documents(name) if document["kind"] == "Service")
    job = documents(name)[-1]
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    meet = next(word for word in container(name)["command"] if word.startswith("--meet="))
    assert meet == f"--meet={job['metadata']['name']}-0.{pod['subdomain']}:{service['spec']['ports'][0]['port']}"
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SILO / name).read_text(encoding="utf-8")))


def container(name: str) -> dict[str, Any]:
    """Return the container of the job that trains, the last one in the file."""
    found: dict[str, Any] = documents(name)[-1]["spec"]["template"]["spec"]["containers"][0]
    return found
