"""Operations: one trace across processes and crashes, and a server that stops in order."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from atoll.server.control import PHASES
from tests.collector import Collector, Span
from tests.patience import WAIT_S, until_now
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.processes import atoll
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, MODEL, ROUNDS, SIZE
from tests.system.servers import Server

pytestmark = pytest.mark.system

SERVER_STEPS = {"invite", "fold", *PHASES}
CLIENT_STEPS = {"download", "fit", "report"}
"""Updates as small as these travel with their reports."""


def round_spans(spans: list[Span], number: int) -> list[Span]:
    """All spans of a round's traces, whether or not they name the round."""
    traces = {one.trace for one in spans if one.attributes.get("atoll.round") == str(number)}
    return [one for one in spans if one.trace in traces]


def has_come(spans: list[Span], number: int) -> bool:
    """Whether the spans of earlier rounds have come, and those of this one's invitation and of all reports but one."""
    names = Counter(one.name for one in round_spans(spans, number))
    released = sum(one.name == "round" for one in spans)
    return names["invite"] > 0 and names["report"] == SIZE - 1 and released >= number


def test_a_round_is_one_trace_across_processes_and_a_crash(
    serve: Serve, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        server, held_round = serve("traced"), 1
        crew = hire(server)
        clients = [crew.start("Steady", index=index) for index in range(SIZE - 1)]
        held = crew.start("Held", index=SIZE - 1, rounds=[held_round])
        run = server.operator.submit(JOB, MODEL)
        held.wait("held", round=held_round)
        for client in clients:
            client.wait("reported", round=held_round)
        collector.until(lambda found: has_come(found, held_round))
        server.kill()
        server.start()
        held.wait("connected", count=2)
        held.go()
        server.operator.finished(run)
        for process in (*(client.process for client in crew.clients), server.process):
            process.terminate()
        spans = collector.until(lambda found: sum(one.name == "round" for one in found) >= ROUNDS)
        tasks = collector.until(lambda found: sum(one.name == "task" for one in found) >= ROUNDS * SIZE)
    assert len(tasks) >= len(spans)

    of_round = round_spans(tasks, held_round)
    assert len({one.trace for one in of_round}) == 1
    (root,) = [one for one in of_round if one.name == "round"]
    assert (root.parent, root.attributes["atoll.run"], root.attributes["atoll.outcome"]) == ("", run, "released")
    steps = [one for one in of_round if one.service == "atoll-server" and one.name in SERVER_STEPS]
    assert {one.name for one in steps} == SERVER_STEPS
    members = {one.id: one for one in of_round if one.name == "participant"}
    assert {one.parent for one in (*steps, *members.values())} == {root.id}
    assert sorted(one.attributes["atoll.participant"] for one in members.values()) == sorted(
        client.participant for client in crew.clients
    )
    parts = [one for one in of_round if one.name == "task"]
    assert sorted(one.parent for one in parts) == sorted(members)
    for part in parts:
        assert part.service == "atoll-client"
        assert {one.name for one in of_round if one.parent == part.id} == CLIENT_STEPS


def test_a_deleted_run_gives_back_what_it_kept_and_stays_gone(serve: Serve, hire: Hire) -> None:
    server = serve("forgetful", "--workers", "2")
    hire(server).steady(SIZE)
    kept, deleted = server.operator.submit(JOB, MODEL), server.operator.submit(KILLED_JOB, KILLED_MODEL)
    for run in (kept, deleted):
        server.operator.finished(run)
    model, size_bytes = server.operator.model(kept), sum(array.nbytes for array in KILLED_MODEL.values())

    until_now(lambda: not (server.data / "spool" / deleted).exists())  # its end goes on after its operator knows of it
    (removed,) = atoll("run", "delete", deleted, "--yes", "--data", str(server.data))["removed"][1:]
    assert (removed["kind"], removed["run"]) == ("models", deleted)
    assert removed["stored_bytes"] > 4 * size_bytes  # three models, two states of the optimiser: the upload is held
    assert [one["run"] for one in atoll("run", "list", "--data", str(server.data))] == [kept]
    assert {one["run"] for one in atoll("server", "storage", "--data", str(server.data))["held"]} == {"", kept}

    server.kill()
    server.start()
    held = {one["kind"]: one for one in atoll("server", "storage", "--data", str(server.data))["held"]}
    assert "unnamed blobs" not in held
    assert server.operator.model(kept) == model
    server.operator.finished(server.operator.submit(KILLED_JOB, KILLED_MODEL))


def metrics_of(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port + 3}/readyz", timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_that_is_told_to_stop_says_so_and_ends_well(
    serve: Serve, hire: Hire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: signal.Signals
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = serve("service", "--json-log")
        assert manager.recv(100) == b"READY=1"
        assert metrics_of(server) == '{"ready": true, "problems": {}}\n'
        client = hire(server).start("Held", index=0)
        alone = {"size": 1, "quorum": 1}
        run = server.operator.submit(job_toml(job={"name": "stopped", "rounds": 1}, cohort=alone), MODEL)
        client.wait("held", run=run)
        os.kill(server.process.pid, order)
        assert manager.recv(100) == b"STOPPING=1"
        assert server.process.wait() == 0
    assert "the server is stopping" in client.wait("disconnected")["reason"]
    server.start()
    client.go()
    assert client.wait("reported", run=run)["disposition"] == "counted"
