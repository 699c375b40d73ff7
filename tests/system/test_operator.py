"""docs/operator.md against a real server: its snippets run as printed, with two participants that join."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.formats.safetensors import read_header
from atoll.operator import (
    BadInputError,
    Cohort,
    Evaluation,
    Job,
    NewTokens,
    NotPermittedError,
    Operator,
    OperatorError,
    Progress,
    RunFailedError,
    Straggler,
    TimedOutError,
    Timeouts,
    UnreachableError,
)
from tests.system.conftest import Serve
from tests.system.processes import ATOLL, Nursery
from tests.system.servers import Server

pytestmark = pytest.mark.system
PAGE = Path(__file__).parents[2] / "docs" / "operator.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
WEIGHTS = {"weight": np.zeros((4, 2), np.float32)}


PARTICIPANT = """
import numpy as np
from atoll.client import Participant, Update


class PlusOne(Participant):
    examples = 1

    def fit(self, model, task):
        weights = {name: np.asarray(array) + np.float32(1) for name, array in model.items()}
        return Update(weights=weights, weight=1, metrics={"loss": 1 / (1 + task.round)})
"""


@pytest.fixture
def server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server whose credential is where an operator keeps it."""
    made = serve("operated")
    for name in ("ATOLL_SERVER", "ATOLL_CREDENTIALS", "ATOLL_DATA"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config" / "atoll"
    config.mkdir(parents=True)
    shutil.copy(made.data / "operator.json", config / "operator.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    monkeypatch.chdir(tmp_path)
    return made


def join(processes: Nursery, tokens: NewTokens) -> None:
    """Start a participant for each token; they end with the test."""
    module = processes.folder / "plus_one.py"
    module.write_text(PARTICIPANT, encoding="utf-8")
    for number, token in enumerate(tokens.tokens):
        state = str(processes.folder / f"state-{number}")
        arguments = (*ATOLL, "client", "start", f"{module}:PlusOne", "--join", token, "--state", state)
        processes.start(arguments, f"participant-{number}")


def test_the_page_does_what_it_says(
    server: Server, processes: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    beginning, rest = SNIPPETS[:2], SNIPPETS[2:]
    for snippet in beginning:
        exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102  # the page's own snippets
    join(processes, names["made"])
    for snippet in rest:
        exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102  # as above
    printed = capsys.readouterr().out
    assert "3 released" in printed
    assert printed.count("finished") == 2
    assert "there is no run 'rnone' | `atoll run list` lists them" in printed
    assert names["history"].curve("loss") == ((1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)))
    assert len(names["rows"]) == 3
    assert read_header(tmp_path / "model.safetensors")[0] == names["model"].layout
    assert server.address in repr(names["run"])
    with pytest.raises(BadInputError, match="is closed"):
        names["run"].summary()
    with Operator.connect() as operator:
        again, run = operator.run(), operator.run(names["run"].id)
        assert (again.id, again.job()) == (names["again"].id, run.job())
        assert again.model().blob == names["model"].blob
        assert "<svg" in run._repr_html_()
        assert "cannot be shown" in operator.run("rnone")._repr_html_()


def test_a_run_is_steered_and_its_end_is_shown(server: Server, processes: Nursery) -> None:
    job = Job(
        rounds=100_000,  # it must not end before it is told to
        cohort=Cohort(size=1, min_available=1),
        straggler=Straggler(retry_delay_s=0.0),
        evaluation=Evaluation(final=False),
    )
    with Operator.connect(data=server.data) as operator:
        run = operator.submit(job, WEIGHTS)
        assert run.summary().status == "running"
        with pytest.raises(TimedOutError, match=r"had not ended after 0\.2 s"):
            run.wait(timeout_s=0.2)
        join(processes, operator.make_tokens())
        assert next(run.rounds()).released
        run.pause()
        paused = next(change for change in run.follow() if change.run.status == "paused")
        run.resume()
        assert run.cancel("enough").status == "cancelled"
        with pytest.raises(RunFailedError, match="cancelled: enough"):
            run.wait()
        assert run.wait(check=False).rounds_released >= paused.run.rounds_released
        assert operator.run().id == run.id
        assert [one.run for one in operator.runs()] == [run.id]
        run.delete()
        assert operator.newest_run() is None
        with pytest.raises(BadInputError, match="there is no run yet"):
            operator.run()


async def test_an_async_follower_outlives_a_restart(server: Server) -> None:
    with Operator.connect() as operator:
        run = operator.submit(Job(rounds=1, cohort=Cohort(size=1)), WEIGHTS)
        lost: list[str] = []
        changes = run.follow_async(lost=lost.append)
        assert (await anext(changes)).run.status == "running"
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        again = await anext(changes)
        assert isinstance(again, Progress)
        assert "lost the server" in lost[0]
        await asyncio.to_thread(run.cancel)
        assert [change.run.status async for change in changes][-1] == "cancelled"


def test_errors_say_what_to_do(server: Server, tmp_path: Path) -> None:
    with Operator.connect(server.address) as operator:
        with pytest.raises(BadInputError, match=r"there are no initial weights\nWhat to do: give the initial weights"):
            operator.submit(Job(rounds=1, cohort=Cohort(size=1)))
        with pytest.raises(BadInputError, match="element type int64"):
            operator.submit(Job(rounds=1, cohort=Cohort(size=1)), {"weight": np.zeros(3, np.int64)})
        with pytest.raises(BadInputError, match="does not say which metric decides"):
            operator.submit(Job(rounds=1, cohort=Cohort(size=1)), WEIGHTS).model("best")
        with pytest.raises(OperatorError, match="no such evaluator"):
            operator.submit(Job(rounds=1, cohort=Cohort(size=1), evaluation=Evaluation(server="none")), WEIGHTS)
    with pytest.raises(NotPermittedError, match=r"cannot be read"):
        Operator.connect(credential=tmp_path / "none.json")
    with (
        Operator.connect("127.0.0.1:1", timeouts=Timeouts(call_s=2.0)) as away,
        pytest.raises(UnreachableError, match="cannot reach the server"),
    ):
        away.health()
