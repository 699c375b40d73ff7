"""Strangers and abusive participants: a run continues undisturbed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from atoll.client._connection.enrolment import enrol
from atoll.server.process.listeners import ENROLMENT_STREAMS
from atoll.wire.chunks import ElementRange, UploadKey, frame_upload, header_of
from atoll.wire.encoding import Encoding
from atoll.wire.join_token import JoinToken
from atoll.wire.v1 import control_pb2, transfer_pb2
from tests.fuzz.memory import forget_peak, peak_bytes
from tests.patience import WAIT_S
from tests.system.conftest import Hire, Serve
from tests.system.flood import Flood
from tests.system.http2 import Http2
from tests.system.noise import noise
from tests.system.operators import job_toml
from tests.system.raw import RawParticipant, refusal
from tests.system.reference import JOB, LARGE_JOB, LARGE_MODEL, MODEL, ROUNDS, SIZE, assert_undisturbed
from tests.system.servers import Server

pytestmark = pytest.mark.system

CHECK_INS = 5
THREADS = 8
ELEMENTS = 40_000
ASKING = 16
TRANSFER = "/atoll.wire.v1.TransferService"
CALLS = 64
LARGEST_BYTES = 4_200_000
"""Nearly the largest message that a server takes."""
HELD_BYTES = {"GetManifest": 128 << 20, "Report": 128 << 20, "Upload": 256 << 20}
REVOKED_BYTES = 32 << 20
UNREAD = 16
UNREAD_S = 8.0
"""Long enough that the test sees, on a busy machine, what the server holds meanwhile."""


@pytest.mark.parametrize(
    "insecure", [pytest.param(False, id="tls"), pytest.param(True, id="plaintext", marks=pytest.mark.every_case)]
)
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
    began = time.monotonic()
    flood = Flood(token, tmp_path / "flood", THREADS)
    with ExitStack() as stack:
        stack.callback(flood.stop)
        run = server.operator.submit(JOB, MODEL)
        clients = hire(server).steady(SIZE)
        server.operator.finished(run)
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    assert flood.answers["checkin.rate"] >= THREADS
    minutes = (time.monotonic() - began) / 60
    assert flood.answers[""] <= CHECK_INS * (1 + minutes) + 1
    assert set(flood.answers) <= {"", "checkin.rate", "CANCELLED"}


def test_forty_thousand_tiny_chunks_and_requests_for_them_delay_no_other_caller(serve: Serve, tmp_path: Path) -> None:
    """Most of the chunks are refused, and statuses of the accepted ones are made one after another.

    Answers are counted instead of seconds: if the attacker's sixteen calls were served before another participant's,
    about sixteen of its answers would arrive for each of the other's.
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


@pytest.mark.parametrize(
    ("method", "revoked"),
    [
        pytest.param("GetManifest", False, id="GetManifest", marks=pytest.mark.every_case),
        pytest.param("GetManifest", True, id="GetManifest, revoked", marks=pytest.mark.every_case),
        pytest.param("Report", False, id="Report", marks=pytest.mark.every_case),
        pytest.param("Report", True, id="Report, revoked"),
        pytest.param("Upload", False, id="Upload"),
        pytest.param("Upload", True, id="Upload, revoked", marks=pytest.mark.every_case),
    ],
)
def test_half_sent_requests_hold_little_memory(serve: Serve, tmp_path: Path, method: str, revoked: bool) -> None:
    """Each announces 4.2 MB and holds back the last byte, which would be 538 MB if all were received."""
    server = serve("half-sent")
    (token,) = server.operator.tokens(1)
    identity = enrol(token, tmp_path / "sender")
    if revoked:
        server.operator.revoke(identity.participant, "lost")
    before = forget_peak(server.process.pid)
    with ExitStack() as stack:
        for _ in range(2):
            http2 = Http2.secure(
                identity.server_address, identity.ca_certificate_pem, identity.key_pem, identity.certificate_pem
            )
            stack.callback(http2.close)
            for _ in range(CALLS):
                http2.half_call(f"{TRANSFER}/{method}", LARGEST_BYTES)
            http2.push()
        grown = peak_bytes(server.process.pid) - before
    assert grown < (REVOKED_BYTES if revoked else HELD_BYTES[method])


def test_downloads_that_are_not_read_are_given_up_and_leave_nothing_behind(serve: Serve, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f"[limits]\nunread_s = {UNREAD_S}\n")
    server = serve("unread", "--config", str(settings))
    credential = json.loads((server.data / "operator.json").read_text())
    request = control_pb2.GetRunModelRequest(run=server.operator.submit(LARGE_JOB, LARGE_MODEL))
    blob = server.operator.stub.GetRunModel(request, timeout=WAIT_S).model.blob
    http2 = Http2.secure(
        server.address, credential["ca_certificate"], credential["key"], credential["certificate"], reads=False
    )
    with closing(http2):
        for _ in range(UNREAD):
            http2.call(f"{TRANSFER}/Download", transfer_pb2.DownloadRequest(blob=blob).SerializeToString())
        wait_until(lambda: blob in maps(server))
        http2.until_closed()
    wait_until(lambda: blob not in maps(server))
    assert f"took nothing of a message for {UNREAD_S:g} s; its connection is closed" in server.process.log


@pytest.mark.parametrize("sockets", [70, 300])
def test_half_sent_enrolments_from_one_address_do_not_keep_out_other_addresses(
    serve: Serve, tmp_path: Path, sockets: int
) -> None:
    """300 connections are more than the enrolment port accepts, and so are the calls of 70 with 8 calls each."""
    server = serve("besieged")
    join = JoinToken.decode(server.operator.tokens(1)[0])
    (token,) = server.operator.tokens(1)
    with ExitStack() as stack:
        for _ in range(sockets):
            http2 = Http2.secure(join.address, join.ca_certificate_pem.decode(), source="127.0.0.2")
            stack.callback(http2.close)
            for _ in range(ENROLMENT_STREAMS):
                http2.half_call("/atoll.wire.v1.EnrolmentService/Enrol", 1000)
            http2.push(quiet_s=0.0)
        assert enrol(token, tmp_path / "newcomer").participant
    assert (tmp_path / "newcomer" / "identity.json").exists()


def maps(server: Server) -> str:
    """The files that the server has mapped."""
    return Path(f"/proc/{server.process.pid}/maps").read_text()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
