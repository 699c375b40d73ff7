"""Ranks, launchers and servers are killed during a silo's rounds: each update counts once, and is right."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.datacenter.checkpoint.folder import step_folder
from atoll.datacenter.checkpoint.manifest import read_manifest
from atoll.datacenter.job import SiloJob
from atoll.wire.encoding import Encoding, as_received
from tests.patience import WAIT_S, kept
from tests.system.conftest import Serve
from tests.system.diloco import Worker, diloco
from tests.system.operators import seconds_since
from tests.system.processes import Nursery
from tests.system.proxy import Proxy, Weather
from tests.system.silos import JOB, OUTER, STEPS, Hold, Sections, Silo, initial_of, job_of, outer_job

pytestmark = pytest.mark.system
ROUNDS = 3
Weights = dict[str, npt.NDArray[Any]]
TOLERANCE = 2e-5
"""Largest accepted difference of a weight after four rounds.

Momentum carries the rounding errors of each round into the next ones; a wrong sum would differ by 1e-3.
"""
REPORTS_AGAIN_S = 30.0
"""From the death of a rank until its silo has reported the round."""


def test_a_round_counts_once_and_is_right_whichever_process_is_killed(
    processes: Nursery, serve: Serve, tmp_path: Path
) -> None:
    """A rank, then the launcher, then the server; finally a stop. Checkpoints are in the middle of the rounds."""
    server, initial = serve("faults"), initial_of(JOB, tmp_path)
    job = job_of(checkpoint={"folder": "kept", "every_steps": 2})
    silo = Silo(processes, "silo", server, 2, job)
    run = server.operator.submit(outer_job("faults", ROUNDS + 1, 1), initial)

    in_first, in_second = Hold(tmp_path / "rank", 1, 3, "data"), Hold(tmp_path / "launcher", 0, 7, "data")
    silo.start(in_first, in_second)
    os.kill(in_first.wait(), signal.SIGKILL)
    killed = time.monotonic()
    silo.reported(0)
    took_s = seconds_since(killed)
    assert kept(took_s, REPORTS_AGAIN_S)

    in_second.wait()
    silo.process.kill()
    in_third, in_fourth = Hold(tmp_path / "server", 1, 11, "data"), Hold(tmp_path / "stop", 1, 13, "data")
    silo.start(in_third, in_fourth)
    silo.reported(1)

    held = in_third.wait()
    server.kill()
    server.start()
    os.kill(held, signal.SIGCONT)
    silo.reported(2)

    held = in_fourth.wait()
    silo.process.send(signal.SIGTERM)
    os.kill(held, signal.SIGCONT)
    assert silo.process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert silo.outcome()["outcome"] == "stopped"

    made = silo.outcome()["step"]
    assert ROUNDS * STEPS < made <= (ROUNDS + 1) * STEPS
    manifest = read_manifest(step_folder(silo.folder / "kept", made)).values["federation"]
    assert (manifest["run"], manifest["round"], manifest["first_step"]) == (run, ROUNDS, ROUNDS * STEPS)
    silo.start()
    silo.reported(ROUNDS)
    server.operator.finished(run, WAIT_S)
    silo.process.send(signal.SIGTERM)
    assert silo.process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert silo.outcome()["step"] == (ROUNDS + 1) * STEPS, "the steps before the stop were not made again"

    released = [seen for seen in server.operator.rounds(run) if seen.phase == "released"]
    assert [(seen.round, seen.attempt) for seen in released] == [(at, 0) for at in range(ROUNDS + 1)]
    expected = diloco([SiloJob.model_validate(job)], tmp_path, initial, ROUNDS + 1, lr=0.7, momentum=0.9)
    assert [[member.weight for member in seen.members] for seen in released] == expected.tokens
    for name, value in server.operator.arrays(run).items():
        np.testing.assert_allclose(value, expected.weights[name], rtol=0, atol=TOLERANCE)


def test_a_stop_while_an_update_travels_beside_steps_loses_neither(
    processes: Nursery, serve: Serve, tmp_path: Path
) -> None:
    """SIGTERM in a step of the next round: this round's update counts, and a checkpoint has the step."""
    server, initial = serve("stopped"), initial_of(JOB, tmp_path)
    job = job_of(federation={"overlap_steps": 2}, checkpoint={"folder": "kept"})
    silo = Silo(processes, "silo", server, 2, job)
    run = server.operator.submit(outer_job("stopped", 2, 1), initial)
    beside = Hold(tmp_path / "beside", 1, STEPS + 1, "data")
    silo.start(beside)
    held = beside.wait()
    silo.process.send(signal.SIGTERM)
    os.kill(held, signal.SIGCONT)
    assert silo.process.wait(WAIT_S) == 128 + signal.SIGTERM
    ended = silo.outcome()
    assert (ended["outcome"], ended["step"] > STEPS) == ("stopped", True)
    assert read_manifest(step_folder(silo.folder / "kept", ended["step"])).values["federation"]["run"] == run

    expected = diloco([SiloJob.model_validate(job)], tmp_path, initial, 1, lr=0.7, momentum=0.9)
    (released,) = [seen for seen in server.operator.rounds(run) if seen.phase == "released"]
    assert (released.round, released.attempt) == (0, 0)
    assert [member.weight for member in released.members] == expected.tokens[0]
    for name, value in server.operator.arrays(run).items():
        np.testing.assert_allclose(value, expected.weights[name], rtol=0, atol=1e-5)


def test_an_upload_goes_on_after_the_network_has_parted_ranks_and_server(
    processes: Nursery, serve: Serve, tmp_path: Path
) -> None:
    """Connections break in the middle of chunks, both ways; then the server is unreachable while a rank sends."""
    server, job = serve("parted"), job_of(model={"vocab": 50_000})
    initial = initial_of(job, tmp_path)
    with Proxy(server.address, Weather(reset_after_bytes=6 << 20)) as network:
        silo = Silo(processes, "silo", server, 2, job, "--server", network.address, "--max-rounds", "1")
        sending = Hold(tmp_path / "sending", 1, STEPS, "sending, and waiting for a round")
        silo.start(sending)
        run = server.operator.submit(outer_job("parted", 1, 1), initial)
        held = sending.wait()
        network.cut()
        silo.event("disconnected")
        os.kill(held, signal.SIGCONT)
        network.mend()
        server.operator.finished(run, WAIT_S)
        assert silo.process.wait(WAIT_S) == 0
        assert network.resets > 0
    expected = diloco([SiloJob.model_validate(job)], tmp_path, initial, 1, lr=0.7, momentum=0.9)
    (released,) = server.operator.rounds(run)
    assert (released.attempt, [member.weight for member in released.members]) == (0, expected.tokens[0])
    for name, value in server.operator.arrays(run).items():
        np.testing.assert_allclose(value, expected.weights[name], rtol=0, atol=1e-5)


@pytest.mark.every_fault
def test_what_was_rounded_off_before_a_kill_is_sent_after_it(processes: Nursery, serve: Serve, tmp_path: Path) -> None:
    """The silo is killed after an update has counted; its newest checkpoint is from before the report."""
    server, initial = serve("rounding"), initial_of(JOB, tmp_path)
    job, rounds = job_of(checkpoint={"folder": "kept", "every_steps": 2}), 3
    silo = Silo(processes, "silo", server, 1, job)
    aggregation = {**OUTER["aggregation"], "encoding": "int4"}
    run = server.operator.submit(outer_job("rounding", rounds, 1, aggregation=aggregation), initial)
    held = Hold(tmp_path / "killed", 0, STEPS + 1, "data")
    silo.start(held)
    silo.reported(0)
    held.wait()
    silo.process.kill()
    silo.start()
    server.operator.finished(run, WAIT_S)

    found = server.operator.arrays(run)
    assert agreement(found, rounded(job, tmp_path, initial, rounds, lost=False)) > 0.95
    assert agreement(found, rounded(job, tmp_path, initial, rounds, lost=True)) < 0.5


def agreement(found: Weights, wanted: Weights) -> float:
    """Share of equal elements; for the others, a quotient was rounded the other way."""
    same = [np.abs(found[name] - value) < 1e-6 for name, value in wanted.items()]
    return float(np.mean(np.concatenate([one.reshape(-1) for one in same])))


def rounded(job: Sections, folder: Path, initial: Weights, rounds: int, *, lost: bool) -> Weights:
    """DiLoCo of one silo in int4 with error feedback; ``lost``: the first update's errors are forgotten."""
    worker = Worker.of(SiloJob.model_validate(job), folder)
    weights = {name: np.array(value, np.float64) for name, value in initial.items()}
    moments = {name: np.zeros_like(value) for name, value in weights.items()}
    errors = {name: np.zeros_like(value) for name, value in initial.items()}
    for number in range(rounds):
        start = {name: value.astype(np.float32) for name, value in weights.items()}
        change, _ = worker.trained(start)
        for name, value in start.items():
            whole = (change[name] + errors[name]).reshape(-1)
            received = as_received(whole, Encoding.INT4_BLOCK)
            errors[name] = np.zeros_like(value) if lost and not number else (whole - received).reshape(value.shape)
            mean = received.reshape(value.shape).astype(np.float64)
            moments[name] = 0.9 * moments[name] + mean
            weights[name] = value + 0.7 * (mean + 0.9 * moments[name])
    worker.loader.close()
    return {name: value.astype(np.float32) for name, value in weights.items()}
