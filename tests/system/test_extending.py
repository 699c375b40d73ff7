"""Extending an ended run on a real server that is killed around the extension."""

from __future__ import annotations

import grpc
import pytest

from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.system.conftest import Hire, Serve
from tests.system.operators import FINISHED, job_toml
from tests.system.processes import ATOLL, Nursery
from tests.system.reference import MODEL, SIZE
from tests.system.servers import Server

pytestmark = pytest.mark.system


def job(rounds: int) -> str:
    """A job whose result depends on every bit of every round; all participants are in each."""
    return job_toml(
        job={"name": "extended", "rounds": rounds, "seed": 3},
        cohort={"size": SIZE, "quorum": SIZE, "seed": 4},
        straggler={"report_window_s": 120, "retry_delay_s": 0.5},
        evaluation={"final": False},
        optimiser={"name": "fedadam", "lr": 0.05},
    )


def extend(server: Server, run: str, rounds: int) -> None:
    request = control_pb2.ExtendRunRequest(run=run, rounds=rounds)
    server.operator.stub.ExtendRun(request, timeout=WAIT_S)


def test_killed_around_its_extension_a_run_ends_with_the_bits_of_a_longer_one(
    serve: Serve, hire: Hire, processes: Nursery
) -> None:
    server = serve("extended")
    hire(server, eager=True).steady(SIZE)
    whole, run = (server.operator.submit(job(rounds), MODEL) for rounds in (4, 2))
    for one in (whole, run):
        server.operator.finished(one)
    wanted = server.operator.model(whole)
    server.kill()
    for moment in ("before extend_requested:1", "after extend_requested:1"):
        server.start(dies=moment)
        before = server.operator.show(run).summary
        assert (before.status, before.rounds_released, before.rounds_total) == (FINISHED, 2, 2)
        with pytest.raises(grpc.RpcError):
            extend(server, run, 2)
        server.died()
    server.start()
    server.operator.finished(run)
    after = server.operator.show(run)
    assert (after.summary.rounds_total, list(after.summary.extended_after)) == (4, [2])
    assert [one.round for one in after.rounds if one.phase == "released"] == [0, 1, 2, 3]
    assert server.operator.model(run) == wanted

    data = ("--data", str(server.data))
    again = processes.start((*ATOLL, "run", "extend", run, "--rounds", "1", "--watch", *data), "extending")
    assert again.wait() == 0, again.log
    shown = processes.start((*ATOLL, "run", "show", run, *data), "showing")
    assert shown.wait() == 0, shown.log
    assert "extended after 2 and 4 rounds" in "\n".join(shown.lines)
