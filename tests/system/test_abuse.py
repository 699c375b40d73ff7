"""Strangers and bad neighbours: a run goes on as if they were not there."""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from atoll.wire.chunks import ElementRange, UploadKey, frame_upload, header_of
from atoll.wire.encoding import Encoding
from tests.system.conftest import Hire, Serve
from tests.system.flood import Flood
from tests.system.noise import noise
from tests.system.operators import job_toml
from tests.system.processes import WAIT_S
from tests.system.raw import RawParticipant, refusal
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE, assert_undisturbed

pytestmark = pytest.mark.system

CHECK_INS = 5
THREADS = 8
ELEMENTS = 40_000
ASKING = 16


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


def test_forty_thousand_tiny_chunks_and_who_asks_for_them_hold_up_nobody(serve: Serve, tmp_path: Path) -> None:
    """Most of the chunks are refused, and statuses of those that were taken are made one after another.

    Answers are counted, not seconds: were the attacker's sixteen calls served before another participant's, then some
    sixteen of its answers would come for each of the other's.
    """
    server = serve("tiny")
    tokens = server.operator.tokens(2)
    with ExitStack() as stack:
        attacker, other = (
            stack.enter_context(closing(RawParticipant(token, tmp_path / name)))
            for token, name in zip(tokens, ("attacker", "other"), strict=True)
        )
        for one in (attacker, other):
            one.check_in()
        toml = job_toml(job={"name": "tiny", "rounds": 1}, cohort={"size": 2})
        server.operator.submit(toml, {"w": np.zeros(ELEMENTS, np.float32)})
        key, beside = attacker.accept().key, other.accept().key
        upload_id = secrets.token_hex(16)
        payload = bytes(4)
        frames = [
            frame_upload(
                header_of(ElementRange.run(at, 1), Encoding.FLOAT32, payload),
                payload,
                UploadKey(key.run, key.round, key.attempt, upload_id) if at == 0 else None,
            )
            for at in range(ELEMENTS)
        ]
        with pytest.raises(grpc.RpcError) as refused:
            attacker.begin_upload(iter(frames)).result()
        assert refusal(refused.value)[1].code == "upload.chunks"
        assert sum(span.size for span in attacker.held(key, upload_id)) <= ELEMENTS // 10

        stop, answers = threading.Event(), [0] * ASKING

        def ask(place: int) -> None:
            while not stop.is_set():
                attacker.held(key, upload_id)
                answers[place] += 1

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(ASKING)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        while sum(answers) < ASKING:
            assert not stop.wait(0.01)
        before, calls = sum(answers), 20
        for _ in range(calls):
            assert other.held(beside, upload_id) == []
        assert sum(answers) - before < calls * ASKING // 2
