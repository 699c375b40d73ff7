"""A private job through the trainer: epsilon in every record, added up over interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.privacy import Budget
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.ranks import RankError, run_ranks
from tests.datacenter.train.test_trainer import JOB, records, run
from tests.patience import WAIT_S

PRIVATE: dict[str, Any] = {
    **JOB,
    "model": {"kind": "vision", "vocab": 10, "layers": 1, "dim": 32, "heads": 4},
    "data": {"source": "digits"},
    "batch": {"global_batch": 100, "micro_batch": 25},
    "checkpoint": {"folder": "checkpoints", "every_steps": 100},
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "accountant": "rdp"},
}


def test_epsilon_is_told_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    (first, _) = run_ranks(run, 2, str(tmp_path), PRIVATE, 3)
    assert first["steps"] == 3
    (second, _) = run_ranks(run, 2, str(tmp_path), PRIVATE, -1)
    assert (second["resumed_at"], second["steps"]) == (3, 6)
    found = {record["step"]: record["epsilon"] for record in records(tmp_path)}
    assert sorted(found) == [2, 4, 6]
    section = SiloJob.model_validate(PRIVATE).privacy
    assert section is not None
    budget = Budget.of(section, 100 / 1572, 6)
    assert found == pytest.approx({step: budget.epsilon(step) for step in found})
    assert 3.98 <= found[6] <= 4.0

    dearer = {**PRIVATE, "privacy": {"noise_multiplier": 0.1, "delta": 1e-5}}
    with pytest.raises(RankError, match="the checkpoint was made with data"):
        run_ranks(run, 1, str(tmp_path), dearer, -1)


def refused(folder: str, sections: dict[str, Any]) -> None:
    with join_world(WAIT_S) as world:
        train(SiloJob.model_validate(sections), Path(folder), world, Unwatched(), console=False)


def test_text_that_streams_cannot_be_sampled(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("nobody knows how many sequences there are\n" * 100)
    job = {**JOB, "data": {"source": "text", "path": "text.txt"}, "privacy": {"noise_multiplier": 1.0}}
    with pytest.raises(RankError, match="it must know all of them"):
        run_ranks(refused, 1, str(tmp_path), job)
