"""A silo's account of its data must know every step of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.client import RoundKey, UsageError
from atoll.client._privacy.sample_ledger import dp_sgd_release, ledger_path
from atoll.client.testing import make_task
from atoll.datacenter.errors import CheckpointError, LayoutError
from atoll.datacenter.federation.spending import Spending, check_spending
from atoll.datacenter.job import SiloJob
from atoll.datacenter.privacy import Budget
from tests.datacenter.training import small

BUDGET = Budget(1.0, 0.1, 1e-5, "rdp")
JOB = SiloJob.model_validate(small(privacy={"noise_multiplier": 1.0, "delta": 1e-5, "limit": 8.0}))
KEY = RoundKey("r1", 0, 1)


def test_without_a_limit_of_its_own_the_jobs_epsilon_is_it(tmp_path: Path) -> None:
    job = SiloJob.model_validate(small(privacy={"epsilon": 2.0, "data": "wards"}))
    ledger = Spending.of(job, BUDGET, tmp_path, tmp_path).ledger
    assert (ledger.limit.epsilon, ledger.path) == (2.0, ledger_path(tmp_path, "wards"))
    with pytest.raises(LayoutError, match=r"privacy\.limit"):
        check_spending(SiloJob.model_validate(small(privacy={"noise_multiplier": 1.0})))


def test_a_checkpoint_with_uncounted_steps_is_refused(tmp_path: Path) -> None:
    spending = Spending.of(JOB, BUDGET, tmp_path, tmp_path)
    spending.check(0)
    spending.charge(make_task(), 5)
    spending.ledger.charge(KEY, "other noise", dp_sgd_release(2.0, 0.1, 100))
    spending.check(5)
    with pytest.raises(CheckpointError, match=r"has 6 steps on the data, but .* has counted 5 of them"):
        spending.check(6)


def test_a_damaged_ledger_is_found_before_anything_begins(tmp_path: Path) -> None:
    path = ledger_path(tmp_path, "data")
    path.parent.mkdir()
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="damaged"):
        Spending.of(JOB, BUDGET, tmp_path, tmp_path)


def test_steps_that_were_made_stay_charged_when_the_rest_cannot_be_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spending, task = Spending.of(JOB, BUDGET, tmp_path, tmp_path), make_task()
    spending.charge(task, 5)
    with monkeypatch.context() as broken:
        broken.setattr("atoll.client._state.records.replace_file", full)
        spending.settle(task, 5, 2)
    assert "3 steps that did not run remain charged" in caplog.text
    spending.check(5)


def full(path: Path, text: str) -> None:
    raise OSError(28, f"{path}: no room for {len(text)} bytes")
