"""Strangers and bad neighbours: a run goes on as if they were not there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.conftest import Hire, Serve
from tests.system.flood import Flood
from tests.system.noise import noise
from tests.system.processes import WAIT_S
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE, assert_undisturbed

pytestmark = pytest.mark.system

CHECK_INS = 5
THREADS = 8


@pytest.mark.parametrize("insecure", [False, True], ids=["tls", "plaintext"])
def test_noise_at_every_port_does_not_disturb_a_run(serve: Serve, hire: Hire, insecure: bool) -> None:
    server = serve("noisy", "--workers", "2", insecure=insecure)
    ports = [server.port, server.port + 1, server.port + 2]
    with noise(ports, seed=1) as strangers:
        run = server.operator.submit(JOB, MODEL)
        clients = hire(server).steady(SIZE)
        server.operator.finished(run)
        assert strangers.heard(10, WAIT_S)
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    assert "unexpected error" not in server.process.log
    assert "Traceback" not in server.process.log


def test_a_flood_of_check_ins_is_refused_while_the_rounds_of_others_go_on(
    serve: Serve, hire: Hire, tmp_path: Path
) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f"[limits]\ncheck_ins_per_minute = {CHECK_INS}\n")
    server = serve("flooded", "--config", str(settings))
    (token,) = server.operator.tokens(1)
    flood = Flood(token, tmp_path / "flood", THREADS)
    with ExitStack() as stack:
        stack.callback(flood.stop)
        run = server.operator.submit(JOB, MODEL)
        clients = hire(server).steady(SIZE)
        server.operator.finished(run)
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    assert flood.answers["checkin.rate"] >= THREADS
    assert flood.answers[""] <= 2 * CHECK_INS
    assert set(flood.answers) <= {"", "checkin.rate", "CANCELLED"}
