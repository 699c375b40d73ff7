"""Choosing a model on a real server: the best by a metric, and early stopping that a kill does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.formats.safetensors import read_header
from atoll.operator import BadInputError, Operator
from tests.system.conftest import Hire, Serve
from tests.system.operators import FINISHED, job_toml
from tests.system.processes import ATOLL, Nursery
from tests.system.servers import Server

pytestmark = pytest.mark.system

SIZE, BEST, STOPS_AFTER = 2, 3, 6
ZEROS = {"w": np.zeros((4, 3), np.float32)}
STOPPING = job_toml(
    job={"name": "peaking", "rounds": 50},
    cohort={"size": SIZE, "quorum": SIZE},
    straggler={"report_window_s": 120, "retry_delay_s": 0.5},
    evaluation={"before_training": True, "final": True},
    retention={"models": 1},
    stop={"metric": "eval/score", "mode": "max", "patience": 2, "min_delta": 0.5},
)
"""Model 3 is the best one; models 4 and 5 are measured in the rounds that make models 5 and 6."""
REASON = (
    "stopped early: eval/score was best with 0 after 3 rounds; the 2 models measured since did not improve it by more "
    "than 0.5"
)


def assert_stopped(server: Server, run: str) -> None:
    """The run ended like an undisturbed one, and its best model is kept in addition to the last."""
    shown = server.operator.show(run)
    assert (shown.summary.status, shown.summary.reason) == (FINISHED, REASON)
    assert (shown.summary.rounds_released, shown.summary.rounds_total) == (STOPS_AFTER, 50)
    released = [(one.kind, one.metrics["eval/score"]) for one in shown.rounds if one.phase == "released"]
    assert released == [*(("train", -float(abs(at - BEST))) for at in range(STOPS_AFTER)), ("evaluate", -3.0)]
    assert (shown.best.metric, shown.best.mode, shown.best.value, shown.best.round) == ("eval/score", "max", 0.0, BEST)
    np.testing.assert_array_equal(server.operator.arrays(run, BEST)["w"], ZEROS["w"] + BEST)
    np.testing.assert_array_equal(server.operator.arrays(run)["w"], ZEROS["w"] + STOPS_AFTER)


def test_a_run_stops_early_and_its_best_model_is_fetched(
    serve: Serve, hire: Hire, processes: Nursery, tmp_path: Path
) -> None:
    server = serve("choosing")
    hire(server).steady(SIZE, "Peaking")
    run = server.operator.submit(STOPPING, ZEROS)
    server.operator.finished(run)
    assert_stopped(server, run)

    data, file = ("--data", str(server.data)), tmp_path / "best.safetensors"
    fetched = processes.start((*ATOLL, "run", "model", run, "--best", "-o", str(file), *data), "fetching")
    assert fetched.wait() == 0, fetched.log
    assert read_header(file)[0].size == ZEROS["w"].size
    shown = processes.start((*ATOLL, "run", "show", run, *data), "showing")
    assert shown.wait() == 0, shown.log
    assert "best model: after 3 rounds, eval/score 0 (max)" in "\n".join(shown.lines)

    with Operator.connect(data=server.data) as operator:
        found = operator.run(run)
        assert found.best().round == BEST
        np.testing.assert_array_equal(found.model("best")["w"], ZEROS["w"] + BEST)
        assert found.best("eval/score", "min").round == 0
        with pytest.raises(BadInputError, match=r"'eval/scores'; measured so far: eval/score"):
            found.best("eval/scores", "max")
        with pytest.raises(BadInputError, match=r"give mode \(--mode\): max or min"):
            found.best("eval/other")


def test_killed_before_and_after_the_decisive_releases_a_run_stops_at_the_same_round(serve: Serve, hire: Hire) -> None:
    server = serve("choosing-mortal")
    run = server.operator.submit(STOPPING, ZEROS)
    server.kill()
    server.start(dies="before published:1")
    hire(server, eager=True).steady(SIZE, "Peaking")
    server.died()
    for moment in ("after published:4", "before published:1", "after published:1"):
        server.start(dies=moment)
        server.died()
    server.start()
    server.operator.finished(run)
    assert_stopped(server, run)
