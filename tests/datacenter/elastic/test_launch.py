"""``atoll silo train`` with real processes: ranks killed, stopped and failing, nodes lost, jobs asked to stop."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.datacenter.checkpoint.folder import steps_in
from atoll.datacenter.checks.start import check_job
from atoll.datacenter.errors import DataError
from atoll.datacenter.job import load_job
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.elastic.launched import Hold, Launched, launched, tensors_of, write_job
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S
from tests.ports import free_ports

pytestmark = pytest.mark.system


def undisturbed(job: str) -> None:
    """Run the job on this rank, without a launcher that could restart it."""
    path = Path(job)
    with join_world(WAIT_S) as world:
        train(load_job(path), path.parent, world, Unwatched(), console=False)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launched, int]]:
    """A job of which rank 1 was stopped, and that rank's process. It ends after 20 s: other tests run meanwhile."""
    folder = tmp_path_factory.mktemp("late")
    hold = Hold(folder / "fifo", rank=1, step=5)
    job = write_job(folder, timeout_s=WAIT_S)
    with launched(job, "--nproc", "2", HOLD=hold.variable, LATE="10") as command:
        stopped = hold.wait()
        os.kill(stopped, signal.SIGSTOP)
        yield command, stopped


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Launched, Future[tuple[int, int]]]]:
    """A job's folder and command; a thread kills a rank, stops one, and asks for a stop; it returns their processes.

    The job waits for the stopped rank for 30 s, so that no other is ever as late: other tests run meanwhile.
    """
    folder = tmp_path_factory.mktemp("disturbed")
    killed, hung, asked = (Hold(folder / f"fifo-{number}", rank=1, step=step) for number, step in enumerate((3, 5, 5)))
    variable = " ".join(hold.variable for hold in (killed, hung, asked))

    def disturb(command: Launched) -> tuple[int, int]:
        gone = killed.wait()
        os.kill(gone, signal.SIGKILL)
        stopped = hung.wait()
        os.kill(stopped, signal.SIGSTOP)
        asked.wait()
        command.process.send_signal(signal.SIGTERM)
        return gone, stopped

    with (
        launched(write_job(folder, timeout_s=30.0), "--nproc", "2", HOLD=variable) as command,
        ThreadPoolExecutor(1) as thread,
    ):
        yield folder, command, thread.submit(disturb, command)


@pytest.mark.usefixtures("late", "disturbed")
def test_a_stop_before_training_says_so_and_a_job_that_is_done_too(tmp_path: Path) -> None:
    """No rank can write a last checkpoint yet. A rank that ends without a report has not finished either."""
    held = Hold(tmp_path / "fifo", rank=0, step=0)
    job = write_job(tmp_path)
    with launched(job, HOLD=held.variable) as command:
        held.wait()
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == 128 + signal.SIGINT, command.said
    assert command.outcome["error"].startswith("ended by SIGINT before training had begun")
    with launched(job) as command:
        assert command.wait() == 0, command.said
    assert "the job continues from there" not in command.said
    with launched(job, SILENT="1") as command:
        assert command.wait() == 1, command.said
    assert "has a checkpoint of step 8, and job.steps = 8: nothing is left to do" in command.said
    assert command.outcome["error"].startswith("rank 0 ended without a report")
    done = load_job(job)
    assert check_job(done, tmp_path, 1, [1]) == 8
    other = done.model_copy(update={"job": done.job.model_copy(update={"seed": 8})})
    with pytest.raises(DataError, match="use the same"):
        check_job(other, tmp_path, 1, [1])


@pytest.mark.parametrize(
    ("signals", "last", "how"),
    [
        ("SIGINT", signal.SIGINT, "before training had begun"),
        ("SIGINT SIGTERM", signal.SIGTERM, "without a last checkpoint"),
    ],
)
def test_a_stop_while_ranks_are_started_ends_them(tmp_path: Path, signals: str, last: signal.Signals, how: str) -> None:
    """A stop during the start leaves no rank running; a second signal ends the job without a last checkpoint."""
    held = Hold(tmp_path / "fifo", rank="any", step=0)
    started = launched(write_job(tmp_path), "--nproc", "2", HOLD=held.variable, SIGNALLED=signals)
    with started as command, held.allowed():
        assert command.wait() == 128 + last, command.said
    assert command.outcome["error"].startswith(f"ended by {last.name} {how}")


def test_a_rank_that_fails_shows_its_traceback_once(tmp_path: Path) -> None:
    """The error is our message, not torchrun's."""
    with launched(write_job(tmp_path), "--max-restarts", "0", FAIL="0:3") as command:
        assert command.wait() == 1, command.said
    assert command.outcome["outcome"] == "failed"
    assert command.outcome["error"].startswith("rank 0: Traceback")
    assert "ZeroDivisionError: as the test wants it" in command.outcome["error"]
    assert command.said.count("Traceback (most recent call last)") == 1


def test_an_error_that_a_restart_meets_again_is_not_tried_a_third_time(tmp_path: Path) -> None:
    """The error is the job's own: the default of three restarts would only repeat it."""
    with launched(write_job(tmp_path), FAIL="0:3") as command:
        assert command.wait() == 1, command.said
    assert "ZeroDivisionError: as the test wants it\nin step 3 of this rank (data)" in command.outcome["error"]
    assert "the job failed after 1 restart;" in command.outcome["error"]
    assert "the same error came again in the same step" in command.said


def test_a_job_goes_on_with_fewer_nodes_when_one_is_lost(tmp_path: Path) -> None:
    """Two agents on one machine, one killed: its rank ends itself; the node where they met continues alone.

    On a busy machine the first node may begin before the second has come: its rank waits, so that they train together.
    """
    hold, alone = Hold(tmp_path / "fifo", rank="any", step=6), Hold(tmp_path / "alone", rank="alone", step=1)
    job, port = write_job(tmp_path), free_ports()
    nodes = ("--nnodes", "1:2", "--meet", f"127.0.0.1:{port}", "--id", "lost", "--logs")
    with alone.allowed(), launched(job, *nodes, str(tmp_path / "one"), HOLD=alone.variable) as left:
        until_listening(port)
        with launched(job, *nodes, str(tmp_path / "two"), HOLD=hold.variable) as lost:
            hold.wait()
            alone.end()
            lost.process.kill()
        assert left.wait() == 0, left.said
        assert "the job continues with 1 ranks instead of 2" in left.said
        assert left.outcome["step"] == 8


def until_listening(port: int) -> None:
    """Wait until the first node listens where the second one will connect."""
    deadline = time.monotonic() + WAIT_S
    while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        assert time.monotonic() < deadline, "the first node does not listen"
        time.sleep(0.05)


def test_a_watch_ends_a_rank_whose_collective_is_late_where_the_back_end_does_not(late: tuple[Launched, int]) -> None:
    """This is the case on GPUs, where the main thread waits for the device and gets no error."""
    command, stopped = late
    assert command.wait() == 0, command.said
    assert "did not end within 10 s" in command.said
    assert "gloo:" in command.said
    assert f"pid {stopped}) does not answer: it is stopped, or its machine is gone" in command.said
    assert command.outcome["outcome"] == "finished"


def test_a_job_survives_a_killed_rank_a_hung_one_and_a_stop(
    disturbed: tuple[Path, Launched, Future[tuple[int, int]]], tmp_path: Path
) -> None:
    """Each time the job continues from the last checkpoint, reports what happened, and ends with the same bits."""
    folder, command, disturbing = disturbed
    gone, stopped = disturbing.result()
    assert command.wait() == 128 + signal.SIGTERM, command.said
    assert f"rank 1 (pid {gone}) was ended by signal 9 (SIGKILL)" in command.said
    assert "restart 1 of 3" in command.said
    assert "did not end within 30 s" in command.said
    assert "gloo:" in command.said
    assert f"pid {stopped}) does not answer: it is stopped, or its machine is gone" in command.said
    assert "restart 2 of 3" in command.said
    outcome = command.outcome
    assert (outcome["outcome"], outcome["restarts"]) == ("stopped", 2)
    assert outcome["step"] in {6, 7}  # the second step after; rank 0 may still have been asked at the end of step 4
    assert steps_in(folder / "kept")[-1] == outcome["step"]
    with launched(folder / "job.toml", "--nproc", "2") as again:
        assert again.wait() == 0, again.said
        assert again.outcome["outcome"] == "finished"
    run_ranks(undisturbed, 2, str(write_job(tmp_path)))
    assert tensors_of(folder, 8) == tensors_of(tmp_path, 8)
