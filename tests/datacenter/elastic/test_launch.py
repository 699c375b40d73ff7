"""``atoll silo train`` with real processes: ranks killed, stopped and failing, nodes lost, jobs asked to stop."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from atoll.datacenter.checkpoint.folder import steps_in
from tests.datacenter.elastic.launched import Hold, launched, tensors_of, write_job

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the job's last checkpoint is when nothing happens, over two ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with launched(write_job(folder), "--nproc", "2") as command:
        assert command.wait() == 0, command.said
        assert command.outcome["outcome"] == "finished"
    return tensors_of(folder, 8)


def test_a_killed_rank_is_back_from_the_last_checkpoint(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """SIGKILL: every bit of the last checkpoint is as if nothing had happened, and the command says what happened."""
    hold = Hold(tmp_path / "fifo", rank=1, step=6)
    with launched(write_job(tmp_path), "--nproc", "2", HOLD=hold.variable) as command:
        pid = hold.wait()
        os.kill(pid, signal.SIGKILL)
        assert command.wait() == 0, command.said
        assert f"rank 1 (pid {pid}) was ended by signal 9 (SIGKILL)" in command.said
        assert "restart 1 of 3" in command.said
        assert command.outcome["restarts"] == 1
    assert tensors_of(tmp_path, 8) == undisturbed


def test_a_rank_that_hangs_is_named_with_the_collective_and_replaced(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """SIGSTOP: the others' collective times out; the error names the rank that does not answer."""
    hold = Hold(tmp_path / "fifo", rank=1, step=6)
    with launched(write_job(tmp_path, timeout_s=8.0), "--nproc", "2", HOLD=hold.variable) as command:
        pid = hold.wait()
        os.kill(pid, signal.SIGSTOP)
        assert command.wait() == 0, command.said
        assert "did not end within 8 s" in command.said
        assert "gloo:" in command.said
        assert f"pid {pid}) does not answer: it is stopped, or its machine is gone" in command.said
        assert command.outcome["restarts"] == 1
    assert tensors_of(tmp_path, 8) == undisturbed


def test_asked_to_stop_it_keeps_a_last_checkpoint_and_goes_on_from_there(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """SIGTERM to the command while rank 1 is late: both ranks stop after the same step."""
    hold = Hold(tmp_path / "fifo", rank=1, step=6)
    job = write_job(tmp_path)
    with launched(job, "--nproc", "2", HOLD=hold.variable) as command:
        hold.wait()
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM, command.said
        assert command.outcome["outcome"] == "stopped"
        stopped_at = command.outcome["step"]
    assert steps_in(tmp_path / "kept")[-1] == stopped_at
    assert stopped_at in {6, 7}
    with launched(job, "--nproc", "2") as command:
        assert command.wait() == 0, command.said
    assert tensors_of(tmp_path, 8) == undisturbed


def test_a_rank_that_fails_shows_its_traceback_and_the_job_its_end(tmp_path: Path) -> None:
    """An error of one rank on every attempt: its own words, once, not those of the ranks that follow."""
    with launched(write_job(tmp_path), "--nproc", "2", "--max-restarts", "0", FAIL="1:3") as command:
        assert command.wait() == 1, command.said
        assert command.outcome["outcome"] == "failed"
        assert command.outcome["error"].startswith("rank 1: Traceback")
        assert "ZeroDivisionError: as the test wants it" in command.outcome["error"]
        assert "the job has failed" in command.outcome["error"]


def test_a_job_goes_on_with_fewer_nodes_when_one_is_lost(tmp_path: Path) -> None:
    """Two agents on one machine, one killed: its rank ends itself, the other node goes on alone."""
    hold = Hold(tmp_path / "fifo", rank=1, step=6)
    job, meet = write_job(tmp_path), f"127.0.0.1:{free_port()}"
    nodes = ("--nnodes", "1:2", "--meet", meet, "--id", "lost", "--logs")
    with (
        launched(job, *nodes, str(tmp_path / "one"), HOLD=hold.variable) as one,
        launched(job, *nodes, str(tmp_path / "two"), HOLD=hold.variable) as two,
    ):
        pid = hold.wait()
        lost, left = (one, two) if parent_of(pid) == one.process.pid else (two, one)
        lost.process.kill()
        assert left.wait() == 0, left.said
        assert "the job goes on with 1 ranks instead of 2" in left.said
        assert left.outcome["step"] == 8


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])
