"""Metrics and health of a running server, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.server.runs.journal import SqlJournal
from atoll.server.stores import StoreDamagedError, StoreUnavailableError
from atoll.server.telemetry import health
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import Participant, World, job, refusal, update_values
from tests.server.runs.private.test_differential_privacy import private_job

EXPECTED = {
    "atoll_build_info",
    "atoll_certificate_expiry_timestamp_seconds",
    "atoll_commit_duration_seconds",
    "atoll_disk_free_bytes",
    "atoll_download_bytes",
    "atoll_event_loop_lag_seconds",
    "atoll_fold_duration_seconds",
    "atoll_participants_connected",
    "atoll_queue_length",
    "atoll_refused_calls",
    "atoll_reports",
    "atoll_round_duration_seconds",
    "atoll_round_phase_duration_seconds",
    "atoll_rounds",
    "atoll_runs",
    "atoll_stored_bytes",
    "atoll_upload_bytes",
    "atoll_worker_restarts",
    "process_resident_memory_bytes",
}


COHORTS = {"poisson": 'sampler = "poisson"\nrate = 1.0', "uniform": 'sampler = "uniform"'}


def get(world: World, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{world.addresses.metrics}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def fetch(world: World, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, world, path)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def play(world: World, alice: Participant) -> None:
    async with alice.check_in() as stream:
        run = await world.submit(job())
        task = await stream.next("participate")
        await alice.report(task.key, update_values(1))
        await world.until(run, "finished")


async def test_the_metrics_of_a_run(world: World, alice: Participant) -> None:
    await play(world, alice)
    status, text = await fetch(world, "/metrics")
    assert status == 200
    assert {family.name for family in text_string_to_metric_families(text)} >= EXPECTED
    found = samples(text)
    assert found["atoll_rounds_total", frozenset({("kind", "train"), ("outcome", "released")})] == 1
    assert found["atoll_reports_total", frozenset({("outcome", "counted")})] == 1
    main = ("node", "main")
    assert found["atoll_upload_bytes_total", frozenset({main})] == update_values(1).nbytes
    assert found["atoll_fold_duration_seconds_count", frozenset({main})] == 1
    assert found["atoll_upload_commit_duration_seconds_count", frozenset({main})] == 1
    assert found["atoll_commit_duration_seconds_count", frozenset()] >= 5
    assert found["atoll_stored_bytes", frozenset({("what", "database")})] > 0
    assert found["atoll_certificate_expiry_timestamp_seconds", frozenset({("certificate", "server")})] > 0
    assert alice.name not in text
    assert len(found) < 400


@pytest.mark.parametrize(("sampler", "shown"), [("poisson", None), ("uniform", 1.0)])
async def test_members_of_a_secret_draw_are_not_counted(
    world: World, alice: Participant, sampler: str, shown: float | None
) -> None:
    privacy = "max_participations = 1" if sampler == "uniform" else ""
    async with alice.check_in() as stream:
        await world.submit(private_job(size=1, cohort=COHORTS[sampler], privacy=privacy))
        await stream.next("participate")
        found = samples((await fetch(world, "/metrics"))[1])
    assert found.get(("atoll_open_round_members", frozenset({("status", "invited")}))) == shown


async def test_a_damaged_log_is_reported_to_participant_and_operator(
    world: World, alice: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The participant that waits for its receipt, the operator, and the alert are all told."""

    async def damaged(*_: object) -> None:
        raise StoreDamagedError("the database is damaged: malformed", where="/srv/atoll.sqlite3")

    async with alice.check_in() as stream:
        run = await world.submit(job())
        task = await stream.next("participate")
        monkeypatch.setattr(SqlJournal, "append", damaged)
        refused = await refusal(alice.report(task.key, update_values(1)))
        assert refused.detail is not None
        assert (refused.status, refused.detail.code) == (grpc.StatusCode.DATA_LOSS, "run.log")
        assert "/srv" not in str(refused.detail)
        shown = await world.operator.control.GetRun(control_pb2.GetRunRequest(run=run))
    assert "cannot go on: the database is damaged" in shown.summary.reason
    _, text = await fetch(world, "/metrics")
    assert samples(text)["atoll_runs", frozenset({("status", "broken")})] == 1


async def test_connected_participants_are_counted_by_kind(world: World, alice: Participant) -> None:
    async with alice.check_in():
        _, text = await fetch(world, "/metrics")
    assert samples(text)["atoll_participants_connected", frozenset({("kind", "edge")})] == 1


async def test_refusals_are_counted_by_code(world: World, alice: Participant) -> None:
    async with alice.check_in() as stream:
        await world.submit(job())
        task = await stream.next("participate")
        with pytest.raises(Exception, match="upload"):
            await alice.claim(task.key, "0" * 64)
    _, text = await fetch(world, "/metrics")
    refused = {dict(labels)["code"] for (name, labels) in samples(text) if name == "atoll_refused_calls_total"}
    assert len(refused) == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
async def test_promtool_has_nothing_to_say(world: World, alice: Participant) -> None:
    await play(world, alice)
    _, text = await fetch(world, "/metrics")
    done = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_health(world: World) -> None:
    assert await fetch(world, "/healthz") == (200, "alive\n")
    status, text = await fetch(world, "/readyz")
    assert (status, json.loads(text)) == (200, {"ready": True, "problems": {}})
    world.daemon._serving = False
    assert (await fetch(world, "/readyz"))[0] == 503
    assert (await fetch(world, "/healthz"))[0] == 200


async def test_a_probe_that_the_end_of_the_server_cuts_off_is_answered_without_a_traceback(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def cut_off(_: object) -> dict[str, str]:
        raise asyncio.CancelledError

    monkeypatch.setattr(health.Readiness, "problems", cut_off)
    assert await fetch(world, "/readyz") == (503, "the server is stopping\n")
    assert "Traceback" not in caplog.text


async def test_a_database_that_cannot_be_written_is_reported_and_hides_no_figure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise StoreUnavailableError("database: disk full", "free some space")

    monkeypatch.setattr("atoll.server.stores.schema_version.touch", refuse)
    monkeypatch.setattr("atoll.server.stores.participants.count_kinds", lambda _, names: refuse(names))
    status, text = await fetch(world, "/readyz")
    assert (status, set(json.loads(text)["problems"])) == (503, {"database"})
    status, text = await fetch(world, "/metrics")
    assert (status, "atoll_disk_free_bytes" in text) == (200, True)


async def test_without_metrics_there_is_no_port(tmp_path: Path) -> None:
    async with World(tmp_path / "data", metrics=False) as world:
        assert world.addresses.metrics == ""


async def test_without_tls_no_certificate_ends(tmp_path: Path) -> None:
    async with World(tmp_path / "data", insecure=True) as world:
        _, text = await fetch(world, "/metrics")
        assert not [name for name, _ in samples(text) if name.startswith("atoll_certificate")]


def test_the_environment_is_left_alone() -> None:
    assert not [name for name in os.environ if name.startswith("PROMETHEUS_")]
