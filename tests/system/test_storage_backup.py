"""A server is backed up while it works, is lost, and continues from the backup with the same participants."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.system.conftest import Hire, Serve
from tests.system.processes import atoll
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, KILLED_ROUNDS, MODEL, ROUNDS, SIZE

pytestmark = pytest.mark.system


def test_backed_up_in_mid_round_destroyed_and_restored_the_run_ends(
    serve: Serve, hire: Hire, tmp_path: Path, killed_undisturbed: bytes
) -> None:
    """The open round's uploads are not in the backup, so it is tried again, and the model is bit-identical.

    The model has several chunks, so that blobs and spool files are recycled, and models linked instead of copied.
    """
    server, held_round = serve("first"), 1
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2, rounds=[held_round])
    run = server.operator.submit(KILLED_JOB, KILLED_MODEL)
    at_work.wait("held", round=held_round)
    for client in done:
        client.wait("reported", round=held_round)

    manifest = atoll("server", "backup", str(tmp_path / "kept"), "--data", str(server.data))
    assert [(line["run"], line["status"], line["rounds_released"]) for line in manifest["runs"]] == [
        (run, "running", held_round)
    ]
    server.kill()
    shutil.rmtree(server.data)
    atoll("server", "restore", str(tmp_path / "kept"), "--data", str(server.data))
    server.start()
    at_work.wait("held", round=held_round, attempt=1)
    at_work.go()

    server.operator.finished(run)
    assert server.operator.model(run) == killed_undisturbed
    shown = server.operator.rounds(run)
    assert [(seen.round, seen.attempt, seen.phase) for seen in shown if seen.phase == "released"] == [
        (0, 0, "released"),
        *((at, int(at == held_round), "released") for at in range(1, KILLED_ROUNDS)),
    ]
    (lost,) = [seen for seen in shown if seen.phase == "abandoned"]
    assert "rejected" in {member.status for member in lost.members}
    assert len(server.operator.participants()) == SIZE
    assert all(client.process.running for client in crew.clients)


def test_backed_up_again_and_again_while_rounds_go_on_every_copy_is_whole(
    serve: Serve, hire: Hire, tmp_path: Path
) -> None:
    server = serve("busy")
    hire(server).steady(SIZE)
    run = server.operator.submit(JOB.replace(f"rounds = {ROUNDS}", "rounds = 25"), MODEL)
    for number in range(2):
        atoll("server", "backup", str(tmp_path / f"kept-{number}"), "--data", str(server.data))
        atoll("server", "restore", str(tmp_path / f"kept-{number}"), "--data", str(tmp_path / f"again-{number}"))
    server.operator.finished(run)
