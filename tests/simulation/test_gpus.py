"""Worker processes with a share of a GPU each. No GPU is needed: ``pretended_gpus`` replaces PyTorch's."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from atoll.client import Model, Task, Update
from atoll.simulation import Cohort, EvaluateError, Federation, Job, Result, SetupError, Workers, sweep
from atoll.simulation.cli import simulate
from atoll.simulation.gpus import VISIBLE, GpuShare, dealt
from tests.simulation.pretended_gpus import limits, pretend
from tests.simulation.test_cli import JOB as JOB_FILE
from tests.simulation.test_federation import MODEL, Stepping

PEOPLE = 8
JOB = Job(rounds=2, cohort=Cohort(size=PEOPLE, seed=1))


class Seeing(Stepping):
    """Reports which GPU its process sees, when it is created and when it trains."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.made_with = os.environ.get(VISIBLE, "")

    def fit(self, model: Model, task: Task) -> Update:
        made = super().fit(model, task)
        assert os.environ.get(VISIBLE, "") == self.made_with
        seen = {"alone": float(self.made_with.isdigit())}
        return Update(delta=made.delta, weight=made.weight, metrics=seen)


def played(workers: int | Workers) -> Result:
    return Federation(participants=Seeing, population=PEOPLE).run(JOB, initial=MODEL, workers=workers)


def test_workers_are_dealt_over_the_devices_in_turns() -> None:
    assert dealt(Workers(5, gpus=0.33), ["0", "1"]) == [GpuShare(one, 0.33) for one in "01010"]
    assert dealt(Workers(2, gpus=1), ["0", "1", "2"]) == [GpuShare("0", 1), GpuShare("1", 1)]
    assert dealt(Workers(2, gpus=2), ["0", "1", "2", "3"]) == [GpuShare("0,1", 1), GpuShare("2,3", 1)]


@pytest.mark.parametrize(
    ("workers", "room"),
    [(Workers(5, gpus=0.5), 4), (Workers(7, gpus=0.3), 6), (Workers(3, gpus=0.6), 2), (Workers(2, gpus=2), 1)],
)
def test_more_shares_than_the_devices_hold_are_refused(workers: Workers, room: int) -> None:
    with pytest.raises(
        SetupError,
        match=rf"workers = {workers.count} with gpus = {workers.gpus:g} each do not fit on 2 visible GPUs "
        rf"\(0, 1\), which have room for {room}: lower workers or gpus",
    ):
        dealt(workers, ["0", "1"])


def test_each_worker_sees_one_device_and_has_its_share_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, devices=2)
    monkeypatch.setenv(VISIBLE, "3, 5,7")  # PyTorch sees two: there is no seventh
    result = played(Workers(4, gpus=0.5))
    found = limits(tmp_path)
    assert Counter(device for device, _ in found.values()) == {"3": 2, "5": 2}
    assert {share for _, share in found.values()} == {0.5}
    assert os.getpid() not in found
    assert os.environ[VISIBLE] == "3, 5,7"
    assert result.digest == played(0).digest


def test_participants_are_made_when_their_process_sees_its_device_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, devices=2)
    monkeypatch.delenv(VISIBLE, raising=False)
    rows = [one for one in played(Workers(2, gpus=1)).history.rows() if one["kind"] == "train"]
    assert [row["train/alone"] for row in rows] == [1.0] * JOB.job.rounds
    assert limits(tmp_path) == {}  # a whole GPU is not limited


def test_a_device_that_a_worker_cannot_use_ends_the_run_before_its_first_participant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(share: float) -> None:
        raise RuntimeError(f"CUDA error: no memory for {share}")

    pretend(monkeypatch, tmp_path, devices=1)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", fail)
    monkeypatch.delenv(VISIBLE, raising=False)

    def make(number: int) -> Seeing:
        (tmp_path / "made").touch()
        return Seeing(number)

    federation = Federation(participants=make, population=PEOPLE)
    with pytest.raises(
        SetupError, match=r"gpus = 0.5: a worker cannot use the GPU '0': CUDA error: no memory for 0.5; use CUDA"
    ):
        federation.run(JOB, initial=MODEL, workers=Workers(2, gpus=0.5))
    assert not (tmp_path / "made").exists()


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv(VISIBLE, "")
    with pytest.raises(SetupError, match=r"gpus = 0.5: PyTorch \S+ sees no GPU on this machine \(CUDA_VIS.* = ''\); "):
        played(Workers(2, gpus=0.5))


def test_a_machine_whose_gpus_cannot_be_counted_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr("torch.cuda.device_count", fail)
    with pytest.raises(SetupError, match="sees no GPU on this machine"):
        played(Workers(1, gpus=0.5))
    assert "the driver is too old" in capfd.readouterr().err


def test_a_process_that_uses_cuda_already_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path, devices=1)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(SetupError, match="this process uses CUDA already, and a process forked from it cannot"):
        played(Workers(1, gpus=0.5))


def test_a_machine_without_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SetupError, match=r'gpus = 0.5 needs PyTorch: pip install .*"\.\[server,torch\]"'):
        played(Workers(1, gpus=0.5))


def test_runs_of_a_sweep_at_the_same_time_are_not_dealt_the_same_devices() -> None:
    federation = Federation(participants=Seeing, population=PEOPLE)
    with pytest.raises(SetupError, match=r"jobs = 2: workers with gpus = 0.5 are for one run at a time"):
        sweep(federation, JOB, initial=MODEL, workers=Workers(1, gpus=0.5), jobs=2)


def test_workers_of_a_run_that_goes_on_get_their_shares_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path, devices=1)
    federation, calls = Federation(participants=Seeing, population=PEOPLE), list[object]()

    def judge(model: object) -> dict[str, float]:
        calls.append(model)
        if len(calls) == 1:
            raise ZeroDivisionError
        return {}

    def go() -> Result:
        kept = tmp_path / "kept"
        return federation.run(JOB, initial=MODEL, evaluate=judge, workers=Workers(2, gpus=0.5), folder=kept)

    with pytest.raises(EvaluateError):
        go()
    assert len(limits(tmp_path)) == 2
    assert go().status == "finished"
    assert len(limits(tmp_path)) == 4


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB_FILE)
    save_file(MODEL, "initial.safetensors")


def simulated(*options: str) -> tuple[int, str, str]:
    people = ["--participants", "tests.simulation.test_gpus:Seeing", "--population", "4"]
    done = CliRunner().invoke(simulate, ["job.toml", *people, *options])
    return done.exit_code, done.stdout, done.output


@pytest.mark.usefixtures("files")
def test_the_command_deals_workers_over_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path, devices=2)
    monkeypatch.delenv(VISIBLE, raising=False)
    code, said, _ = simulated("--workers", "3", "--gpus", "0.4", "--json")
    assert (code, [row["reported"] for row in json.loads(said)["rounds"][:2]]) == (0, [3, 3])
    assert sorted(limits(tmp_path).values()) == [["0", 0.4], ["0", 0.4], ["1", 0.4]]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "3", "--gpus", "0.5"], "do not fit on 1 visible GPU"),
        (["--gpus", "0.5"], "is for worker processes: give workers = 1 or more"),
        (["--workers", "1", "--gpus", "1.5"], "give a share from 0 to 1, or a whole number of GPUs"),
        (["--workers", "1", "--gpus", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_what_the_command_cannot_deal_is_bad_input(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, tmp_path, devices=1)
    code, _, said = simulated(*options)
    assert (code, message in said) == (2, True)
    assert limits(tmp_path) == {}
