"""A private job through the trainer: epsilon in every record, added up over interruptions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from atoll.client.silo import Limit, sample_ledger
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
    "batch": {"global_batch": 100, "micro_batch": 50},
    "data_parallel": {"method": "ddp"},
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


LEDGER = "privacy/samples-data.json"


def counted(folder: Path, path: str = LEDGER) -> list[int]:
    """Return the steps of each entry of a ledger."""
    ledger = sample_ledger(folder / path, Limit(math.inf, 1e-5), "rdp")
    return [entry.release.count for entry in ledger.account().entries]


class FailsAfter(Unwatched):
    """Ends the process of a job after a step, as an error does: without a last checkpoint."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stops_after(self, step: int) -> bool:
        if step == self._step:
            raise RuntimeError("lost")
        return False


def lost(folder: str, sections: dict[str, Any], step: int) -> str:
    with join_world(WAIT_S) as world:
        try:
            train(SiloJob.model_validate(sections), Path(folder), world, FailsAfter(step), console=False)
        except RuntimeError as error:
            return str(error)
        return "well"


def test_steps_are_charged_to_a_ledger_and_once_if_they_are_made_again(tmp_path: Path) -> None:
    """A stop refunds steps that did not run. A crash does not; the steps after the checkpoint are charged already."""
    run_ranks(run, 2, str(tmp_path), PRIVATE, 3)
    assert counted(tmp_path) == [3]
    assert run_ranks(lost, 2, str(tmp_path), PRIVATE, 5) == ["lost", "lost"]
    assert counted(tmp_path) == [6]
    (again, _) = run_ranks(run, 2, str(tmp_path), PRIVATE, -1)
    assert (again["resumed_at"], again["steps"]) == (3, 6)
    assert counted(tmp_path) == [6]
    anew = {**PRIVATE, "checkpoint": {}}
    run_ranks(run, 1, str(tmp_path), anew, -1)
    run_ranks(run, 1, str(tmp_path), anew, -1)
    assert counted(tmp_path) == [6, 6, 6]


def test_a_limit_over_all_jobs_refuses_what_does_not_fit(tmp_path: Path) -> None:
    """The refusal comes before the first step, and names the spending and the file, which may be a federated silo's."""
    privacy = {"noise_multiplier": 1.0, "delta": 1e-5, "accountant": "rdp", "ledger": "state/ours.json"}
    job = {**PRIVATE, "checkpoint": {}, "privacy": {**privacy, "limit": 4.0}}
    run_ranks(run, 1, str(tmp_path), job, -1)
    assert counted(tmp_path, "state/ours.json") == [6]
    longer = {**job, "job": {**PRIVATE["job"], "steps": 1000}}
    with pytest.raises(RankError, match=r"privacy\.limit = 4 does not allow the job's 1000 steps: .*ours\.json"):
        run_ranks(run, 1, str(tmp_path), longer, -1)
    assert counted(tmp_path, "state/ours.json") == [6]
