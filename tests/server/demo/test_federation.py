from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from atoll.processes import ChildFailedError, Processes
from atoll.server.config.config_file import load_config
from atoll.server.demo import federation
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
    python = federation._ATOLL[0]
    monkeypatch.setattr(federation, "_ATOLL", (python, "-c", "raise SystemExit('seen')"))
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


def test_a_server_that_ends_is_reported_with_its_log(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = federation._ATOLL[0]
    monkeypatch.setattr(federation, "_ATOLL", (python, "-c", "raise SystemExit('port in use')"))
    with pytest.raises(ChildFailedError, match="server ended with exit code 1") as caught:
        Federation(tmp_path, Plan(1, 1, 1), processes).start_server()
    assert "port in use" in str(caught.value)


def test_a_server_that_never_serves_is_given_up(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = federation._ATOLL[0]
    monkeypatch.setattr(federation, "_ATOLL", (python, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(federation, "READY_S", 0.3)
    with pytest.raises(ChildFailedError, match="does not serve after 0 s"):
        Federation(tmp_path, Plan(1, 1, 1), processes).start_server()


def test_what_a_ready_server_says_is_read(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys, time\n"
        'os.write(int(sys.argv[-1]), b\'{"address": "h:1", "enrolment": "h:2", "operator": "/x/operator.json"}\\n\')\n'
        "time.sleep(600)"
    )
    monkeypatch.setattr(federation, "_ATOLL", (federation._ATOLL[0], "-c", code))
    ready = Federation(tmp_path, Plan(1, 1, 1), processes).start_server()
    assert (ready.address, ready.enrolment, str(ready.operator)) == ("h:1", "h:2", "/x/operator.json")


def test_a_client_gets_its_token_in_a_private_file(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation, "_ATOLL", (federation._ATOLL[0], "-c", "import time; time.sleep(600)"))
    Federation(tmp_path, Plan(1, 1, 1), processes).start_client(0, "atoll-join-1.x")
    token = tmp_path / "client-0" / "join-token"
    assert token.read_text() == "atoll-join-1.x"
    assert token.stat().st_mode & 0o077 == 0
    (child,) = processes._children
    assert "atoll-join-1.x" not in " ".join(
        map(str, child.process.args if isinstance(child.process.args, list) else [])
    )
