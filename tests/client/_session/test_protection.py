"""Protection of updates: clipped if the operator promises privacy, noised if the participant asks for it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import BudgetSpentError, Evaluation, Model, Participant, Policy, RoundKey, Task, TaskKind, Update
from atoll.client._privacy.clipping import MARGIN
from atoll.client._privacy.ledger import Limit, read_account
from atoll.client._privacy.randomisers import Gaussian, LocalPrivacy, Mechanism, Sphere
from atoll.client._session.protection import LocalProtection, Protection
from atoll.client.errors import RefusedError, TrainerError
from atoll.client.testing import FakeServer, make_task, model_of
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding
from tests.patience import WAIT_S
from tests.wire.test_privacy_terms import TERMS

START: dict[str, npt.NDArray[Any]] = {"w": np.zeros((20, 5), np.float32), "b": np.zeros(10, np.float64)}
SIZE = 110


class Steady(Participant):
    """Moves every weight by the same amount."""

    examples = 7

    def __init__(self, by: float) -> None:
        self.by = by

    def fit(self, model: Model, task: Task) -> Update:
        del task
        delta = {name: np.full(view.shape, self.by) for name, view in model.items()}
        return Update(delta=delta, weight=5, metrics={"loss": self.by}, partial=True)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del model, task
        return Evaluation({"loss": self.by}, 7)


def local(mechanism: Mechanism | None = None, epsilon: float = 100.0) -> LocalPrivacy:
    return LocalPrivacy(mechanism or Gaussian(1.0, 1e-6, clip_norm=0.5), Limit(epsilon, 1e-5))


def reported(by: float, **fields: Any) -> npt.NDArray[np.float64]:
    result = FakeServer(START, **fields).run(Steady(by))
    assert not result.rounds[0].declined
    return result.rounds[0].reports[0].update


def test_long_updates_of_private_rounds_are_clipped_over_all_tensors() -> None:
    assert np.linalg.norm(reported(3.0, privacy=TERMS)) == pytest.approx(MARGIN * TERMS.clip_norm)
    assert np.linalg.norm(reported(3.0)) == pytest.approx(3.0 * math.sqrt(SIZE))


def test_short_updates_and_zeros_are_left_alone() -> None:
    np.testing.assert_allclose(reported(0.01, privacy=TERMS), 0.01, rtol=1e-6)
    np.testing.assert_array_equal(reported(0.0, privacy=TERMS), 0.0)


def test_what_would_be_too_large_is_not_once_it_is_clipped() -> None:
    assert np.abs(reported(100.0, privacy=TERMS)).max() < 1
    with pytest.raises(TrainerError, match="magnitude up to 32"):
        reported(100.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_refused(wrong: float) -> None:
    with pytest.raises(TrainerError, match="finite"):
        reported(wrong, privacy=TERMS)


def test_only_what_is_sent_counts_for_the_norm() -> None:
    model = model_of(START)
    task = make_task(privacy=TERMS, ranges=(ElementRange.run(0, 4),))
    sent = Protection().outgoing(model, Steady(0.2).fit(model, task), task, 7)
    out = np.empty(4)
    sent.shard.source.read(sent.shard.ranges[0], Encoding.FLOAT64, out)
    np.testing.assert_allclose(out, 0.2)  # a norm of 0.4; all elements together would have 2.1


def test_private_rounds_report_no_metrics() -> None:
    (report,) = FakeServer(START, privacy=TERMS).run(Steady(0.1)).rounds[0].reports
    assert not report.metrics
    assert not report.evaluation
    (report,) = FakeServer(START).run(Steady(0.1)).rounds[0].reports
    assert report.metrics
    assert report.evaluation


def test_a_randomiser_noises_whatever_the_server_says(tmp_path: Path) -> None:
    """This holds with privacy terms too; the server then clips to its own norm."""
    start = {"w": np.zeros(10_000, np.float32)}
    for privacy in (None, TERMS):
        server = FakeServer(start, privacy=privacy, state=tmp_path, max_abs=1e3)
        (report,) = server.run(Steady(3.0), policy=Policy(local_privacy=local())).rounds[0].reports
        std = Gaussian(1.0, 1e-6, 0.5).std
        assert 0.95 * std < report.update.std() < 1.05 * std  # seven standard deviations of this estimate


def test_only_the_noised_update_is_sent(tmp_path: Path) -> None:
    server = FakeServer(START, state=tmp_path, max_abs=1e3)
    (report,) = server.run(Steady(3.0), policy=Policy(local_privacy=local())).rounds[0].reports
    assert not report.metrics
    assert not report.evaluation
    assert report.weight == Steady.examples  # declared, not 5
    assert not report.partial


@pytest.mark.parametrize("mechanism", [Gaussian(1.0, 1e-6, 0.5), Sphere(1.0, 0.5)])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_updates_that_are_not_finite_are_sent_as_noise(mechanism: Mechanism, wrong: float, tmp_path: Path) -> None:
    """Refusing them would reveal something about the data to the server."""
    server = FakeServer(START, state=tmp_path, max_abs=1e3)
    (report,) = server.run(Steady(wrong), policy=Policy(local_privacy=local(mechanism))).rounds[0].reports
    assert np.isfinite(report.update).all()
    assert report.update.std() > 0.1


def test_rounds_are_declined_once_the_budget_is_spent_and_stay_so_after_a_restart(tmp_path: Path) -> None:
    policy = Policy(local_privacy=local(Sphere(1.0, 0.5), epsilon=3.0))
    result = FakeServer(START, state=tmp_path, max_abs=1e3).run(Steady(1.0), rounds=5, policy=policy)
    assert [len(played.reports) for played in result.rounds] == [1, 1, 1, 0, 0]
    ((_, reason),) = result.rounds[3].declined
    assert reason.startswith("privacy: 3 of epsilon 3 (delta 1e-05) are spent on each participant here")
    again = FakeServer(START, state=tmp_path, max_abs=1e3).run(Steady(1.0), policy=policy)
    assert again.rounds[0].declined


def test_a_policy_that_declines_is_asked_before_anything_is_charged(tmp_path: Path) -> None:
    policy = Policy(local_privacy=local(), min_cohort=2)
    assert FakeServer(START, state=tmp_path, max_abs=1e3).run(Steady(1.0), policy=policy).rounds[0].declined
    assert read_account(tmp_path / "0" / "privacy" / "updates.json") is None


def test_evaluations_and_noise_that_does_not_fit_are_declined(tmp_path: Path) -> None:
    protection = LocalProtection(local(), tmp_path)
    assert "metrics would reveal" in (protection.objection(make_task(kind=TaskKind.EVALUATE)) or "")
    assert "aggregation.max_abs must be larger" in (protection.objection(make_task(max_abs=1.0)) or "")
    assert protection.objection(make_task(max_abs=100.0)) is None


def test_a_limit_that_was_reached_meanwhile_is_kept(tmp_path: Path) -> None:
    """Two clients share a ledger: both accept the round, and the second finds the budget spent."""
    first, second = (LocalProtection(local(Sphere(1.0, 1.0), epsilon=1.5), tmp_path) for _ in range(2))
    task = make_task(max_abs=1e3)
    assert first.objection(task) is second.objection(task) is None
    first.charge(task)
    with pytest.raises(BudgetSpentError):
        second.charge(task)


def test_the_server_hears_nothing_of_what_the_participants_code_says(tmp_path: Path) -> None:
    protection, error = LocalProtection(local(), tmp_path), TrainerError("fit raised KeyError: 'Smith, John'")
    assert "Smith" not in protection.text_for_server(error)
    assert "busy" in protection.text_for_server(RefusedError("busy"))
    assert Protection().text_for_server(error) == "TrainerError (its text stays in the participant's log)"
    assert "Smith" in Protection(policy=Policy(errors="text")).text_for_server(error)
    assert "Smith" not in LocalProtection(local(), tmp_path, policy=Policy(errors="text")).text_for_server(error)


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from atoll.client import Participant, Policy, Update
from atoll.client._privacy.randomisers import LocalPrivacy, Sphere
from atoll.client._privacy.ledger import Limit
from atoll.client.testing import FakeServer

class Killed(Participant):
    def fit(self, model, task):
        if task.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Update(delta={"w": np.ones(4)}, weight=1)

policy = Policy(local_privacy=LocalPrivacy(Sphere(1.0, 0.5), Limit(10.0, 0.0)))
server = FakeServer({"w": np.zeros(4, np.float32)}, state=Path(sys.argv[1]), max_abs=100.0)
server.run(Killed(), rounds=5, policy=policy)
"""


def test_a_round_that_was_killed_in_training_is_charged(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False, timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL
    assert not list(temporary.iterdir())
    account = read_account(tmp_path / "0" / "privacy" / "updates.json")
    assert account is not None
    assert account.rounds == 3
    assert account.epsilon == pytest.approx(3.0)


def test_the_ledger_names_runs_and_rounds(tmp_path: Path) -> None:
    protection = LocalProtection(local(Sphere(1.0, 1.0)), tmp_path)
    for number, run in enumerate(("r1", "r1", "r2")):
        protection.charge(replace(make_task(run_name=f"name of {run}"), key=RoundKey(run, number, 0)))
    document = json.loads((tmp_path / "privacy" / "updates.json").read_text())
    assert [(entry["run_name"], entry["rounds"]) for entry in document["entries"]] == [
        ("name of r1", 2),
        ("name of r2", 1),
    ]
