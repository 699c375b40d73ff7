"""Asynchronous jobs, started from their job file."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.asynchrony import train_asynchronously
from atoll.datacenter.train.pulse import Unwatched
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

DIGITS: dict[str, Any] = {
    "job": {"name": "digits", "steps": 30},
    "model": {"kind": "vision", "layers": 1, "dim": 32, "heads": 2},
    "data": {"source": "digits"},
    "batch": {"global_batch": 32, "micro_batch": 16},
    "optimiser": {"name": "sgd", "lr": 0.1},
    "checkpoint": {"folder": "kept"},
    "metrics": {"json_lines": "lines.jsonl", "every_steps": 10},
}


class Noting(Unwatched):
    """Records whether Python's automatic collection is on within steps of this rank's trainer."""

    python_collects = False

    def enter(self, step: int, phase: str) -> None:
        super().enter(step, phase)
        self.python_collects |= phase == "data" and gc.isenabled()


def run(folder: str, asynchrony: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    job = SiloJob.model_validate({**DIGITS, "asynchrony": asynchrony, **more})
    pulse = Noting()
    with join_world(WAIT_S) as world:
        summary = train_asynchronously(job, Path(folder), world, pulse, console=False)
    return {"steps": summary.steps, "loss": summary.loss, "python_collects": pulse.python_collects}


_MORE = {"precision": {"compute": "bfloat16"}, "memory": {"checkpointing": "full"}}
"""What workers can do because they run the trainer's loop and passes."""


@pytest.mark.parametrize(
    ("asynchrony", "more"),
    [({"staleness": 2}, {}), ({"staleness": 2}, _MORE), ({"method": "hogwild"}, {})],
    ids=["server", "server-bfloat16-full", "hogwild"],
)
def test_a_job_learns_tells_and_leaves_its_weights(
    asynchrony: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    found = run_ranks(run, 3, str(tmp_path), asynchrony, more)
    assert [one["steps"] for one in found] == [30, 30, 30]
    assert not any(one["python_collects"] for one in found)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 3
    assert losses[-1] == pytest.approx(found[0]["loss"])
    assert losses[-1] < losses[0]
    assert load_file(tmp_path / "kept" / "weights.safetensors")


@pytest.mark.parametrize(
    ("sections", "ranks", "says"),
    [
        ({"asynchrony": {}}, 1, "on 1 rank: rank 0 is the server, start at least 2"),
        ({"asynchrony": {}, "batch": {"global_batch": 2}}, 4, "less than one sequence for each of 3 workers"),
        ({"asynchrony": {}, "mesh": {"tp": 2}}, 4, "[mesh] has no effect with [asynchrony]"),
        ({"asynchrony": {}, "data_parallel": {"method": "ddp"}}, 4, "[data_parallel] has no effect"),
        ({"asynchrony": {}, "memory": {"checkpointing": "gathered"}}, 4, "with [asynchrony]: there is no tp"),
        ({"asynchrony": {}, "privacy": {"noise_multiplier": 1.0}}, 4, "[privacy] is not available with [asynchrony]"),
        (
            {"asynchrony": {}, "precision": {"compute": "float16"}},
            4,
            "[precision] with [asynchrony] supports only compute",
        ),
        (
            {"asynchrony": {}, "precision": {"reduce": "bfloat16"}},
            4,
            "[precision] with [asynchrony] supports only compute",
        ),
        (
            {"asynchrony": {}, "model": {**DIGITS["model"], "kind": "llama", "lora": {}}},
            4,
            "[model.lora] is not available",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(sections: dict[str, Any], ranks: int, says: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check_layout(SiloJob.model_validate({**DIGITS, **sections}), ranks)
    assert says in str(caught.value)


def test_hogwild_needs_no_server_and_takes_no_staleness() -> None:
    job = SiloJob.model_validate({**DIGITS, "asynchrony": {"method": "hogwild"}})
    assert check_layout(job, 1).dp_shard == 1
    with pytest.raises(ValueError, match="staleness"):
        SiloJob.model_validate({**DIGITS, "asynchrony": {"method": "hogwild", "staleness": 3}})
