"""The console as a process beside a real server, whose run a participant trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from atoll.operator import Cohort, Evaluation, Job, Operator, Straggler
from tests.console.browser import Answer, Browser
from tests.system.conftest import Hire, Serve
from tests.system.processes import ATOLL, Nursery, Process
from tests.system.test_operator import join
from tests.system.test_statistics import EXAMPLE, written
from tests.system.test_statistics import JOB as STATISTICS

pytestmark = pytest.mark.system
WEIGHTS = {"weight": np.zeros((4, 2), np.float32)}
JOB = Job(
    name="steered",
    rounds=100_000,
    cohort=Cohort(size=1, min_available=1),
    straggler=Straggler(retry_delay_s=0.0),
    evaluation=Evaluation(final=False),
)


def console(processes: Nursery, *options: str) -> tuple[Process, Browser]:
    """A console, and a browser that has come in by its link."""
    process = processes.start((*ATOLL, "console", "--port", "0", "--json", *options), "console")
    link: str = process.wait_for(lambda lines: json.loads(lines[0])["link"] if lines else None, "link")
    browser = Browser(urlsplit(link).port or 0)
    assert browser.open(link).status == 200
    return process, browser


def send(browser: Browser, path: str, **fields: str) -> Answer:
    return browser.post(path, {"form_token": browser.form_token(), **fields})


def until(events: Iterator[tuple[str, str]], beginning: str) -> str:
    """The first event whose sentence begins so."""
    return next(text for _, text in events if text.startswith(beginning))


def test_a_run_is_followed_and_steered(serve: Serve, processes: Nursery) -> None:
    server = serve("watched")
    _, browser = console(processes, "--data", str(server.data))
    with Operator.connect(data=server.data) as operator:
        run = operator.submit(JOB, WEIGHTS)
        path = f"/runs/{run.id}"
        assert f'href="{path}">steered</a>' in browser.get("/").text
        join(processes, operator.make_tokens(organisation="north"))
        with browser.events(f"{path}/events") as events:
            next(text for _, text in events if not text.startswith("running, 0 of"))
            assert 'aria-label="loss' in browser.get(path).text
            page = browser.get(f"{path}/rounds/1").text
            assert "north" in page
            assert "1 of 1 reported" in page
            assert send(browser, f"{path}/pause").status == 303
            until(events, "paused")
            assert send(browser, f"{path}/resume").status == 303
            until(events, "running")
            assert send(browser, f"{path}/cancel", reason="seen enough").status == 303
            until(events, "cancelled")
            assert list(events)[-1] == ("ended", "over")
        assert "seen enough" in browser.get(path).text
        (participant,) = operator.participants()
        page = browser.get(f"/participants/{participant.participant}").text
        assert "steered" in page
        assert "Runs without privacy used its updates" in page
        answer = send(browser, "/start", job=JOB.to_toml(), like=run.id, model="newest")
        assert answer.status == 303, answer.text
        again = operator.run()
        assert answer.headers["location"] == f"/runs/{again.id}?done=start"
        assert again.model_ref(0).blob == run.model_ref().blob
        again.cancel()


def test_statistics_from_their_job_to_their_figures(
    serve: Serve, hire: Hire, processes: Nursery, tmp_path: Path
) -> None:
    rows, server = written(tmp_path), serve("hospitals")
    crew = hire(server)
    for number in range(4):
        client = crew.add("Steady", f"--arg=file={tmp_path / f'{number}.csv'}")
        client.behaviour = f"{EXAMPLE}:Hospital"
        client.start()
    _, browser = console(processes, "--data", str(server.data))
    answer = send(browser, "/start", job=STATISTICS)
    assert answer.status == 303, answer.text
    path = answer.headers["location"].partition("?")[0]
    with browser.events(f"{path}/events") as events:
        assert list(events)[-1] == ("ended", "over")
    assert f'href="{path}/statistics"' in browser.get(path).text
    page = browser.get(f"{path}/statistics").text
    assert f"{len(rows)} rows of 4 participants" in page
    assert f"{rows[:, 0].mean():.6g}" in page
    assert f"{rows[:, 1].std(ddof=1):.6g}" in page
    assert 'aria-label="histogram of mean radius"' in page
    assert "<td>label</td><td>1</td>" in page


def test_a_revoked_operator_is_shut_out(serve: Serve, processes: Nursery, tmp_path: Path) -> None:
    """The console has the rights of its credential, and no others."""
    server = serve("guarded")
    with Operator.connect(data=server.data) as operator:
        credential = tmp_path / "dora.json"
        operator.make_operator("dora").credential.write(credential)
        _, browser = console(processes, "--credentials", str(credential))
        assert browser.get("/").status == 200
        operator.revoke_operator("dora")
        answer = browser.get("/")
        assert answer.status == 403
        assert "revoked" in answer.text
