from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from atoll.processes import ChildFailedError, Processes, demonstration
from atoll.server.config.config_file import load_config
from atoll.server.demo.federation import Federation, Plan
from atoll.server.jobs import parse_job
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.events import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as found:
        yield found


def test_everything_is_prepared(tmp_path: Path, processes: Processes) -> None:
    made = Federation(tmp_path, Plan(clients=3, rounds=2, seed=1), processes)
    made.prepare()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"shard-0.npz", "shard-1.npz", "shard-2.npz", "held-out.npz", "init.safetensors", "job.toml"}
    spec = parse_job(made.job.read_bytes())
    assert (spec.job.rounds, spec.cohort.size, spec.cohort.seed, spec.evaluation.server) == (2, 3, 1, "digits")


def test_with_privacy_the_same_job_is_prepared_twice(tmp_path: Path, processes: Processes) -> None:
    made = Federation(tmp_path, Plan(clients=200, rounds=30, seed=1, private=True), processes)
    made.prepare()
    plain, private = parse_job(made.job.read_bytes()), parse_job(made.private_job.read_bytes())
    assert plain.privacy is None
    assert (plain.training, plain.cohort.rate, plain.cohort.min_available) == (private.training, 0.5, 200)
    contract = contract_of(private)
    assert contract is not None
    assert contract.sampling is Sampling.POISSON
    assert (contract.rounds, contract.divisor_weight, contract.population) == (30, 100, "digits")
    assert len(list(tmp_path.glob("shard-*.npz"))) == 200


def test_the_server_lets_so_many_enrol_at_once(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "ATOLL", (sys.executable, "-c", "raise SystemExit('seen')"))
    with pytest.raises(ChildFailedError):
        Federation(tmp_path, Plan(200, 1, 1, private=True), processes).start_server()
    config = load_config({"data": tmp_path / "server"}, tmp_path / "server.toml")
    assert config.limits.enrolments_per_minute >= 280


def test_a_crowd_gets_its_tokens_in_private_files(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    Federation(tmp_path, Plan(3, 1, 1, private=True), processes).start_crowds(["a", "b", "c"])
    first, second = (tmp_path / f"crowd-{number}" / "join-tokens" for number in range(2))
    assert (first.read_text(), second.read_text()) == ("0 a\n2 c\n", "1 b\n")
    assert first.stat().st_mode & 0o077 == 0
