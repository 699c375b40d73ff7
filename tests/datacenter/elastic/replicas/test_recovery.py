"""Recovery in place with real processes: ranks killed in each phase, late groups, the plain loop as reference."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.datacenter.checkpoint.folder import steps_in
from atoll.datacenter.data import open_job_batches
from atoll.datacenter.elastic.replicas.quorum import MAX_BEHIND
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from tests.datacenter.elastic.launched import Launched, launched
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import TOLERANCE
from tests.patience import WAIT_S

pytestmark = pytest.mark.system

PROGRAM = "tests.datacenter.elastic.replicas.program"
JOB = """
[job]
name = "small"
steps = {steps}
seed = 7
[model]
layers = 2
dim = 32
heads = 4
ffn_dim = 64
[batch]
sequence = 16
global_batch = 12
micro_batch = 1
[optimiser]
epsilon = 1e-6
[mesh]
dp_replicate = {groups}
{axes}
[data_parallel]
method = "{method}"
[checkpoint]
folder = "kept"
every_steps = 3
[faults]
recovery = "in-place"
collective_timeout_s = {timeout_s}
max_restarts = 9
{faults}
[metrics]
every_steps = 1
json_lines = "metrics.jsonl"
"""
BACKUP, SPECULATIVE = "backup_replicas = 1", "speculate_after = 1"
LATE_STEPS = 3 + MAX_BEHIND
"""Steps of jobs in which a group is held in step 5: it can still catch up at the end, however late it is let go."""


def write_job(
    folder: Path,
    steps: int,
    groups: int = 3,
    method: str = "ddp",
    faults: str = "",
    timeout_s: float = WAIT_S,
    axes: str = "",
) -> Path:
    job = folder / "job.toml"
    job.write_text(
        JOB.format(steps=steps, groups=groups, method=method, faults=faults, timeout_s=timeout_s, axes=axes),
        encoding="utf-8",
    )
    return job


class Gate:
    """Holds a group at a step: pass ``variable`` to the command, then ``open``."""

    def __init__(self, folder: Path, group: int | str, step: int, phase: str = "training") -> None:
        self._fifo = folder / f"gate-{group}-{step}-{phase}"
        os.mkfifo(self._fifo)
        self.variable = f"{group}:{step}:{phase}:{self._fifo}"

    def open(self) -> None:
        """Let the group continue, once it is there."""
        with self.reached():
            pass

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Wait until the group is there, and let it continue at the end."""
        with self._fifo.open("w", encoding="utf-8"):
            yield
        self._fifo.unlink()


def run(job: Path, nproc: int, kills: Sequence[str], gates: Sequence[Gate]) -> Any:
    return launched(
        job,
        "--nproc",
        str(nproc),
        module=PROGRAM,
        FACTS=str(job.parent),
        KILL=" ".join(kills),
        GATE=" ".join(gate.variable for gate in gates),
    )


def open_once_kept(gate: Gate, folder: Path, step: int) -> None:
    """Let the group at a gate continue once the checkpoint of a step, which a thread writes, can be read."""
    until_s = time.monotonic() + WAIT_S
    with gate.reached():
        while step not in steps_in(folder / "kept"):
            assert time.monotonic() < until_s, f"no checkpoint of step {step}"
            time.sleep(0.01)


def processes_of(folder: Path) -> Counter[tuple[int, int]]:
    """Return how many processes each rank has had, by group and position."""
    lines = (folder / "pids").read_text(encoding="utf-8").split("\n")[:-1]
    return Counter((int(line.split()[0]), int(line.split()[1])) for line in lines)


def records_of(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the record of each step; the later line counts."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return {found["step"]: found for line in lines if "loss" in (found := json.loads(line))}


def states_of(folder: Path, groups: int, position: int = 0) -> list[dict[str, Tensor]]:
    return [torch.load(folder / f"state-{group}-{position}.pt", weights_only=True) for group in range(groups)]


def assert_same_bits(folder: Path, groups: int, position: int = 0) -> None:
    """All groups hold the same parameters and optimiser states."""
    first, *others = states_of(folder, groups, position)
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            assert torch.equal(value, other[name]), name


def finish(command: Launched) -> dict[str, Any]:
    assert command.wait() == 0, command.said
    outcome = command.outcome
    assert outcome["outcome"] == "finished", command.said
    return outcome


def plain_loop(job_file: str, contributors: dict[str, list[int]]) -> dict[str, Any]:
    """Train in one process; each step has the rows of the groups that were in it, and no others."""
    path = Path(job_file)
    job = load_job(path)
    groups = job.mesh.dp_replicate
    sections = job.model_dump(exclude_unset=True) | {"checkpoint": {}, "faults": {}, "metrics": {}, "mesh": {}}
    alone = SiloJob.model_validate(sections)
    losses = []
    with join_world(WAIT_S) as world, open_trainer(alone, path.parent, world, Unwatched(), console=False) as trainer:
        batches = open_job_batches(alone, path.parent)
        for number in range(job.job.steps):
            shares = [batches.step(number).share(one, groups) for one in contributors[str(number + 1)]]
            rows = [part for share in shares for part in share.micro_batches(job.batch.micro_batch)]
            losses.append(trainer.step(number, rows).loss)
        return {
            "losses": losses,
            "state": {name: value.clone() for name, value in trainer.state.model_tensors().items()},
        }


def assert_plain_loop(job: Path, folder: Path) -> None:
    """Check that the run equals the loop that leaves a group's gradients out of the steps that it was not in."""
    records = records_of(folder)
    contributors = {str(step): record["replicas"] for step, record in records.items()}
    (wanted,) = run_ranks(plain_loop, 1, str(job), contributors)
    torch.testing.assert_close([records[step]["loss"] for step in sorted(records)], wanted["losses"], rtol=0, atol=1e-6)
    found = states_of(folder, 1)[0]
    for name, value in wanted["state"].items():
        assert (found[name] - value).abs().max().item() <= TOLERANCE, name


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launched, Path]]:
    """A job with a group that hangs, and its folder. The other group waits for 40 s: other tests run meanwhile."""
    folder = tmp_path_factory.mktemp("hanging")
    hung = Gate(folder, 1, 3)
    with run(write_job(folder, steps=4, groups=2, timeout_s=40.0), 2, (), [hung]) as command:
        yield command, folder


@pytest.mark.usefixtures("hanging")
def test_groups_killed_in_sum_vote_and_optimiser_leave_and_come_back(tmp_path: Path) -> None:
    """The group that never dies keeps its process even while it is alone; the leader may be the one that dies."""
    kills = ("1:0:2:sum", "0:0:3:summed", "1:0:7:optimiser")
    gates, returning = [Gate(tmp_path, 2, 5), Gate(tmp_path, 2, 9)], Gate(tmp_path, 1, 0, "returning")
    job = write_job(tmp_path, steps=11)
    with run(job, 3, kills, [*gates, returning]) as command:
        command.until("step  3/11")
        returning.open()
        command.until("is ready to come back", 2)
        gates[0].open()
        command.until("is ready to come back", 3)
        gates[1].open()
        outcome = finish(command)
    assert (outcome["restarts"], outcome["replicas_lost"], outcome["replicas_healed"]) == (3, 3, 3)
    assert processes_of(tmp_path) == {(0, 0): 2, (1, 0): 3, (2, 0): 1}
    records = records_of(tmp_path)
    assert sorted(records) == list(range(1, 12))
    assert records[1]["replicas"] == [0, 1, 2]
    assert 1 not in records[2]["replicas"]
    assert records[3]["replicas"] == [2]
    assert records[7]["replicas"] == [0, 1, 2]
    assert 1 not in records[8]["replicas"]
    assert records[11]["replicas"] == [0, 1, 2]
    assert (records[11]["replicas_lost"], records[11]["replicas_healed"]) == (3, 3)
    assert_same_bits(tmp_path, 3)
    assert_plain_loop(job, tmp_path)
    assert steps_in(tmp_path / "kept")[-1] == 11


@pytest.mark.every_fault
def test_a_group_killed_in_its_pass_and_again_while_it_heals(tmp_path: Path) -> None:
    """The live group that sends the state continues when the other group is gone."""
    gates = [Gate(tmp_path, 0, 4), Gate(tmp_path, 0, 6)]
    job = write_job(tmp_path, steps=8)
    with run(job, 3, ("2:0:2:training", "2:0:2:fetching"), gates) as command:
        command.until("is ready to come back", 1)
        gates[0].open()
        command.until("is ready to come back", 2)
        gates[1].open()
        outcome = finish(command)
    assert outcome["restarts"] == 2
    assert processes_of(tmp_path) == {(0, 0): 1, (1, 0): 1, (2, 0): 3}
    records = records_of(tmp_path)
    assert 2 not in records[2]["replicas"]
    assert records[8]["replicas"] == [0, 1, 2]
    assert_same_bits(tmp_path, 3)
    assert_plain_loop(job, tmp_path)


_TWO_RANKS = [
    ("zero2", ""),
    pytest.param("ddp", "pp = 2", marks=pytest.mark.every_fault),
    pytest.param("ddp", "tp = 2", marks=pytest.mark.every_fault),
]


@pytest.mark.parametrize(("method", "axes"), _TWO_RANKS)
def test_a_group_of_two_ranks_is_lost_and_heals_as_one(tmp_path: Path, method: str, axes: str) -> None:
    """Each rank gets its shard, stage or part of the matrices from the rank at its position."""
    gates = [Gate(tmp_path, 0, 4)]
    job = write_job(tmp_path, steps=6, groups=2, method=method, axes=axes)
    with run(job, 4, ("1:1:2:sum",), gates) as command:
        command.until("is ready to come back")
        gates[0].open()
        finish(command)
    assert processes_of(tmp_path) == {(0, 0): 1, (0, 1): 1, (1, 0): 2, (1, 1): 2}
    records = records_of(tmp_path)
    assert (records[2]["replicas"], records[6]["replicas"]) == ([0], [0, 1])
    for position in range(2):
        assert_same_bits(tmp_path, 2, position)
    contributors = {str(step): record["replicas"] for step, record in records.items()}
    (wanted,) = run_ranks(plain_loop, 1, str(job), contributors)
    torch.testing.assert_close([records[step]["loss"] for step in sorted(records)], wanted["losses"], rtol=0, atol=2e-6)


def test_all_groups_lost_go_on_from_the_last_checkpoint_and_a_stop_stops_all(tmp_path: Path) -> None:
    """No group has a state: it comes from the disk. A stop before the end writes a last checkpoint."""
    gates = [Gate(tmp_path, 0, 4), Gate(tmp_path, 0, 7)]
    job = write_job(tmp_path, steps=8, groups=2)
    with run(job, 2, ("0:0:5:training", "1:0:5:training"), gates) as command:
        open_once_kept(gates[0], tmp_path, 3)
        command.until("all replica groups go on together from step 3")
        command.until("step 6/8", 1)
        command.process.send_signal(signal.SIGTERM)
        command.until("the job stops after this step")
        gates[1].open()
        assert command.wait() == 128 + signal.SIGTERM, command.said
    assert (command.outcome["outcome"], command.outcome["step"]) == ("stopped", 7)
    assert steps_in(tmp_path / "kept")[-1] == 7
    with run(job, 2, (), ()) as command:
        assert finish(command)["step"] == 8
    assert_same_bits(tmp_path, 2)


@pytest.mark.every_fault
def test_the_only_group_with_a_state_killed_at_the_start_while_it_sends_it(tmp_path: Path) -> None:
    """This happens before the first step, when there is no checkpoint either, so the job starts over."""
    job = write_job(tmp_path, steps=2, groups=2)
    with run(job, 2, ("0:0:1:serving",), ()) as command:
        outcome = finish(command)
    assert (outcome["step"], outcome["restarts"] > 0) == (2, True)
    assert_same_bits(tmp_path, 2)
    assert_plain_loop(job, tmp_path)


@pytest.mark.every_fault
def test_the_only_group_with_a_state_killed_while_it_sends_it(tmp_path: Path) -> None:
    """All groups then continue from the last checkpoint, instead of waiting for each other for ever."""
    gates = [Gate(tmp_path, 0, 6)]
    job = write_job(tmp_path, steps=7, groups=2)
    with run(job, 2, ("1:0:5:training", "0:0:2:serving"), gates) as command:
        command.until("is ready to come back")
        open_once_kept(gates[0], tmp_path, 3)
        outcome = finish(command)
    assert "all replica groups go on together from step 3" in command.said
    assert outcome["step"] == 7
    assert_same_bits(tmp_path, 2)


@pytest.mark.every_fault
def test_the_leader_killed_while_it_writes_the_last_checkpoint(tmp_path: Path) -> None:
    """The job does not report that it has finished, and the same command runs the rest."""
    gate = Gate(tmp_path, 0, 5)
    job = write_job(tmp_path, steps=5, groups=2)
    with run(job, 2, ("0:0:5:last_checkpoint",), [gate]) as command:
        open_once_kept(gate, tmp_path, 3)
        assert command.wait() != 0
    assert "it was the group that writes the last checkpoint: start the same command again" in command.said
    assert steps_in(tmp_path / "kept")[-1] == 3
    with run(job, 2, (), ()) as command:
        assert finish(command)["step"] == 5
    assert steps_in(tmp_path / "kept")[-1] == 5
    assert_same_bits(tmp_path, 2)


def test_a_late_group_does_not_set_the_pace_and_catches_up(tmp_path: Path) -> None:
    """With one backup, the others run steps while it is stopped in its pass; then it applies the means it missed."""
    late, later = Gate(tmp_path, 1, 2), Gate(tmp_path, 2, 5)
    job = write_job(tmp_path, steps=LATE_STEPS, faults=BACKUP)
    with run(job, 3, (), [late, later]) as command:
        command.until(f"step 4/{LATE_STEPS}")
        late.open()
        command.until(f"step 5/{LATE_STEPS}")
        later.open()
        outcome = finish(command)
    assert outcome["restarts"] == 0
    records = records_of(tmp_path)
    assert [records[step]["replicas"] for step in range(2, 6)] == [[0, 2], [0, 2], [0, 2], [0, 1]]
    assert records[4]["replica_share"] == pytest.approx(2 / 3)
    assert processes_of(tmp_path) == {(0, 0): 1, (1, 0): 1, (2, 0): 1}
    assert_same_bits(tmp_path, 3)
    assert_plain_loop(job, tmp_path)


@pytest.mark.every_fault
def test_a_group_that_is_too_late_gets_a_whole_state(tmp_path: Path) -> None:
    """Its ranks keep few means; the group is not started again."""
    late, other = Gate(tmp_path, 1, 2), Gate(tmp_path, 0, 8)
    job = write_job(tmp_path, steps=9, faults=BACKUP)
    with run(job, 3, (), [late, other]) as command:
        command.until("is more than 4 steps behind")
        command.until("step 7/9")
        late.open()
        command.until("is ready to come back")
        other.open()
        outcome = finish(command)
    assert (outcome["restarts"], outcome["replicas_lost"]) == (0, 0)
    assert processes_of(tmp_path) == {(0, 0): 1, (1, 0): 1, (2, 0): 1}
    assert_same_bits(tmp_path, 3)
    assert_plain_loop(job, tmp_path)


def test_a_group_that_hangs_is_ended_and_started_again(hanging: tuple[Launched, Path]) -> None:
    """Without backups the others wait for it as long as the job allows, and then continue."""
    command, folder = hanging
    outcome = finish(command)
    assert "replica group 1: has not arrived at step 3 within 40 s" in command.said
    # The other group may have made its last steps before the launcher looks.
    goes_on = "replica group 0 goes on without it; it restarts alone" in command.said
    assert goes_on or "the job is ending without it" in command.said
    assert outcome["replicas_lost"] == 1
    assert records_of(folder)[3]["replicas"] == [0]


def assert_undisturbed(folder: Path, groups: int, nproc: int, **job: Any) -> None:
    """Check that all groups hold the bits of a run in which no group was late or helped."""
    calm = folder / "calm"
    calm.mkdir()
    with run(write_job(calm, groups=groups, **job), nproc, (), ()) as command:
        finish(command)
    for position in range(nproc // groups):
        assert_same_bits(folder, groups, position)
        (found,), (wanted,) = states_of(folder, 1, position), states_of(calm, 1, position)
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name


def test_a_late_group_does_not_set_the_pace_and_no_digit_changes(tmp_path: Path) -> None:
    """Its micro-batches run in a faster group while it is stopped, so every step is over all rows."""
    late, later = Gate(tmp_path, 1, 2), Gate(tmp_path, 2, 5)
    job = write_job(tmp_path, steps=LATE_STEPS, faults=SPECULATIVE)
    with run(job, 3, (), [late, later]) as command:
        command.until(f"step 4/{LATE_STEPS}")
        late.open()
        command.until(f"step 5/{LATE_STEPS}")
        later.open()
        outcome = finish(command)
    assert outcome["restarts"] == 0
    records = records_of(tmp_path)
    assert all(record["replicas"] == [0, 1, 2] for record in records.values())
    assert [records[step]["replicas_speculated"] for step in (2, 3, 4)] == [1, 1, 1]
    assert records[5]["replicas_speculated"] >= 1
    assert processes_of(tmp_path) == {(0, 0): 1, (1, 0): 1, (2, 0): 1}
    assert_undisturbed(tmp_path, 3, 3, steps=LATE_STEPS)


_LATE_OF_TWO = [
    (2, "ddp", ""),
    *(
        pytest.param(4, method, axes, marks=pytest.mark.every_fault)
        for method, axes in (("zero1", ""), ("zero2", ""), ("zero3", ""), ("ddp", "tp = 2"), ("ddp", "pp = 2"))
    ),
]


@pytest.mark.parametrize(("ranks", "method", "axes"), _LATE_OF_TWO)
def test_a_late_group_that_is_first_after_all_counts(tmp_path: Path, ranks: int, method: str, axes: str) -> None:
    """In step 2 the other group breaks off its work for the late one, in step 3 it does not; its ranks agree."""
    late, later = Gate(tmp_path, 0, 2), Gate(tmp_path, 0, 3)
    helping, ahead = Gate(tmp_path, 1, 2, "speculation"), Gate(tmp_path, 1, 4)
    job = write_job(tmp_path, steps=5, groups=2, method=method, axes=axes, faults=SPECULATIVE)
    with run(job, ranks, (), [late, helping, later, ahead]) as command:
        with helping.reached():
            late.open()
            command.until("step 2/5")
        with ahead.reached():
            later.open()
        finish(command)
    records = records_of(tmp_path)
    assert all(record["replicas"] == [0, 1] for record in records.values())
    assert [records[step]["replicas_speculated"] for step in (2, 3)] == [0, 1]
    assert_undisturbed(tmp_path, 2, ranks, steps=5, method=method, axes=axes)


@pytest.mark.every_fault
def test_a_group_killed_while_it_runs_micro_batches_of_a_late_one_is_replaced(tmp_path: Path) -> None:
    """Another group that has arrived replaces it: the step has the rows of the late group, not those of the lost."""
    late, survivor = Gate(tmp_path, 2, 2), Gate(tmp_path, "0,1", 4)
    job = write_job(tmp_path, steps=6, faults=SPECULATIVE)
    with run(job, 3, ("0,1:0:2:speculation",), [late, survivor]) as command:
        command.until("is ready to come back")
        late.open()
        survivor.open()
        outcome = finish(command)
    assert (outcome["restarts"], outcome["replicas_healed"]) == (1, 1)
    records = records_of(tmp_path)
    assert records[2]["replicas"] in ([0, 2], [1, 2])
    assert records[2]["replicas_speculated"] == 1
    assert records[6]["replicas"] == [0, 1, 2]
    assert_same_bits(tmp_path, 3)
    assert_plain_loop(job, tmp_path)
