"""``atoll client`` as real processes against a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256

from atoll.client.cli import app
from atoll.wire.privacy_terms import terms_to_proto
from atoll.wire.v1 import participation_pb2 as part
from tests.client.harness import MODEL, Federation
from tests.client.tls import SecureFederation
from tests.patience import WAIT_S
from tests.wire.test_privacy_terms import TERMS

pytestmark = pytest.mark.slow

SOURCE = """
import numpy as np
from atoll.client import Participant, Update

class Add(Participant):
    examples = 7
    def __init__(self, amount: float = 1.0):
        self.amount = np.float32(amount)
    def fit(self, model, task):
        return Update(weights={name: view + self.amount for name, view in model.items()}, weight=7)

class Patient(Add):
    def fit(self, model, task):
        task.stop_event.wait(60)
        return super().fit(model, task)

class Forking(Add):
    def fit(self, model, task):
        import multiprocessing, random
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=random.seed) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * 4
        return super().fit(model, task)

class Deaf(Add):
    def fit(self, model, task):
        import threading
        threading.Event().wait(60)
"""


class Process:
    """A client process; its stdout as JSON lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def event(self, name: str) -> dict[str, Any]:
        """Read up to the event of this name."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            async for line in self.process.stdout:
                found: dict[str, Any] = json.loads(line)
                if found["event"] == name:
                    return found
        raise AssertionError(f"no event {name}")

    async def ended(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, err = await asyncio.wait_for(self.process.communicate(), WAIT_S)
        return self.process.returncode or 0, err.decode()


@pytest.fixture
async def server() -> AsyncIterator[Federation]:
    async with Federation(MODEL) as federation:
        yield federation


@pytest.fixture
async def processes() -> AsyncIterator[list[Process]]:
    """A process that is always ended at the end of the test."""
    started: list[Process] = []
    yield started
    for item in started:
        if item.process.returncode is None:
            item.process.kill()
            await item.process.wait()


async def atoll(processes: list[Process], cwd: Path, *arguments: str) -> Process:
    (cwd / "trainer_cli.py").write_text(SOURCE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from atoll.client.cli import main; main()", *arguments,
        cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if key != "ATOLL_JOIN_TOKEN"},
    )  # fmt: skip
    processes.append(Process(process))
    return processes[-1]


def insecure(server: Federation) -> list[str]:
    return ["--server", server.address, "--insecure", "--participant", "paaaaaaaaaaaa", "--state", "state"]


async def test_once(server: Federation, processes: list[Process], tmp_path: Path) -> None:
    start = ["client", "start", "trainer_cli:Add", *insecure(server), "--once", "--json", "--arg", "amount=2.5"]
    client = await atoll(processes, tmp_path, *start, "--label", "site=a b")
    assert dict((await server.hello()).labels) == {"site": "a b"}
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 2.5)
    assert (await client.event("reported"))["disposition"] == "counted"
    assert await client.ended() == (0, "")


SPHERE = '[local_privacy]\nmechanism = "sphere"\nepsilon = 0.5\nclip_norm = 0.1\nmax_epsilon = 4.0\n'


async def test_a_join_token_from_a_file_over_tls_and_status(processes: list[Process], tmp_path: Path) -> None:
    async with SecureFederation(MODEL) as server:
        (tmp_path / "token").write_text(server.token() + "\n")
        (tmp_path / "policy.toml").write_text(f"[privacy]\nmax_total_epsilon = 20\n{SPHERE}")
        start = ["client", "start", "trainer_cli:Add", "--join", "@token", "--state", "state", "--once"]
        start += ["--policy", "policy.toml"]
        client = await atoll(processes, tmp_path, *start)
        server.invite(privacy=terms_to_proto(TERMS))
        await server.report()
        assert await client.ended() == (0, "")
        status = await atoll(processes, tmp_path, "client", "status", "--state", "state", "--json")
        out, _ = await status.process.communicate()
        found = json.loads(out)
        assert (found["participant"], found["organisation"], found["rounds_24h"]) == ("p1", "clinic-a", 1)
        assert found["bytes_24h"] == 2 * server.layout.size_bytes
        assert (found["cached_models"], found["running_pid"]) == (1, None)
        assert 0 < found["certificate_remaining_s"] <= 600
        assert found["privacy"] == [
            {
                "name": "updates",
                "unit": "participant",
                "epsilon": 0.5,
                "delta": 0.0,
                "limit_epsilon": 4.0,
                "rounds": 1,
                "runs": ["demo"],
            }
        ]
        authority = server.authority.certificate.fingerprint(SHA256()).hex()
        assert found["promises"] == {
            "epsilon": 8.0,
            "limit_epsilon": 20.0,
            "delta": 1e-5,
            "limit_delta": None,
            "runs": 1,
            "populations": [
                {
                    "server": f"sha256:{authority}",
                    "population": "digits",
                    "epsilon": 8.0,
                    "delta": 1e-5,
                    "runs": ["demo"],
                }
            ],
        }
        status = await atoll(processes, tmp_path, "client", "status", "--state", "state")
        out, _ = await status.process.communicate()
        assert out.decode().startswith("participant    p1 (edge, clinic-a)\nserver         127.0.0.1:")
        spent = "updates: epsilon 0.5 of 4 at delta 0 spent on each participant, in 1 round of demo"
        assert f"\nprivacy        {spent}\n" in out.decode()
        assert "\npromised       epsilon 8 of 20, delta 1e-05 of unlimited, by 1 run together\n" in out.decode()
        assert f"  digits of sha256:{authority[:8]}…: epsilon 8, delta 1e-05, by demo\n" in out.decode()


async def test_trainers_may_fork(server: Federation, processes: list[Process], tmp_path: Path) -> None:
    """Torch's DataLoader forks like this with num_workers: gRPC's own fork handlers crash the children."""
    start = ["client", "start", "trainer_cli:Forking", *insecure(server), "--max-rounds", "5"]
    client = await atoll(processes, tmp_path, *start)
    for number in range(5):
        server.invite(number)
        await server.report()
    assert await client.ended() == (0, "")


async def test_ctrl_c_stops_the_trainer_and_tells_the_server(
    server: Federation, processes: list[Process], tmp_path: Path
) -> None:
    client = await atoll(processes, tmp_path, "client", "start", "trainer_cli:Patient", *insecure(server), "--json")
    server.invite()
    assert (await server.reply()).verdict == part.TaskReply.VERDICT_ACCEPTED
    client.process.send_signal(signal.SIGINT)
    reply = await server.reply()
    assert (reply.verdict, reply.reason) == (part.TaskReply.VERDICT_FAILED, "interrupted by the participant's user")
    assert await client.ended() == (130, "\natoll: interrupted\n")
    assert server.reports.empty()


async def test_a_second_ctrl_c_ends_it_at_once(server: Federation, processes: list[Process], tmp_path: Path) -> None:
    client = await atoll(processes, tmp_path, "client", "start", "trainer_cli:Deaf", *insecure(server), "--json")
    server.invite()
    await server.reply()
    client.process.send_signal(signal.SIGINT)
    await client.event("failed")
    client.process.send_signal(signal.SIGINT)
    assert (await client.ended())[0] == 130


async def test_sigterm_is_a_good_end(server: Federation, processes: list[Process], tmp_path: Path) -> None:
    client = await atoll(processes, tmp_path, "client", "start", "trainer_cli:Add", *insecure(server), "--json")
    await server.hello()
    client.process.send_signal(signal.SIGTERM)
    assert (await client.event("finished"))["reason"] == "terminated"
    assert await client.ended() == (0, "")


async def test_a_killed_client_starts_again(server: Federation, processes: list[Process], tmp_path: Path) -> None:
    start = ["client", "start", "trainer_cli:Patient", *insecure(server), "--json"]
    client = await atoll(processes, tmp_path, *start)
    server.invite()
    await server.reply()
    client.process.kill()
    await client.ended()
    await server.hello()
    await atoll(processes, tmp_path, "client", "start", "trainer_cli:Add", *insecure(server), "--json")
    assert list((await server.hello()).resuming) == []
    server.invite()
    np.testing.assert_array_equal(server.update_of(await server.report()), 1.0)


@pytest.fixture
def handlers_kept() -> Iterator[None]:
    """Give the root logger its handlers back: the command's own writes to a stream that is closed after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("handlers_kept")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trainer_cli:Add", "--arg", "size=3"], 2, "unexpected keyword argument 'size'"),
        (["trainer_cli:Add", "--arg", "size"], 2, "expected NAME=VALUE"),
        (["trainer_cli:Add"], 2, "give a join token (--join)"),
        (["trainer_cli:Add", "--join", "nonsense"], 2, "not a join token"),
        (["trainer_cli:Add", "--join", "@gone"], 2, "cannot read the join token from gone"),
        (["trainer_cli:Add", "--insecure"], 2, "the server's address is needed"),
        (["trainer_cli:Add", "--insecure", "--server", "1.2.3.4:5"], 2, "is not loopback"),
        (["trainer_cli:Add", "--insecure", "--server", "127.0.0.1:5"], 2, "a participant name is needed"),
        (["trainer_cli:Add", "--policy", "gone.toml"], 2, "cannot read the policy gone.toml"),
        (["trainer_cli:Add", "--max-rounds", "0"], 2, "Invalid value for '--max-rounds'"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ATOLL_JOIN_TOKEN", raising=False)
    (tmp_path / "trainer_cli.py").write_text(SOURCE)
    assert app.run_cli(["client", "start", *arguments, "--state", "state"]) == code
    sys.modules.pop("trainer_cli", None)
    err = capsys.readouterr().err
    assert message in " ".join(err.split())
    assert "Traceback" not in err


async def test_a_participant_that_does_not_exist(processes: list[Process], tmp_path: Path) -> None:
    client = await atoll(processes, tmp_path, "client", "start", "trainer_cli:Nope", "--state", "state")
    ended, err = await client.ended()
    assert ended == 2
    assert "trainer_cli has no Nope; its classes and functions are" in " ".join(err.split())
    assert "Traceback" not in err


async def test_two_clients_cannot_share_a_state_directory(
    server: Federation, processes: list[Process], tmp_path: Path
) -> None:
    await atoll(processes, tmp_path, "client", "start", "trainer_cli:Add", *insecure(server))
    await server.hello()
    second = await atoll(processes, tmp_path, "client", "start", "trainer_cli:Add", *insecure(server))
    code, err = await second.ended()
    assert (code, "already works in state; give this one another --state" in err) == (2, True)
