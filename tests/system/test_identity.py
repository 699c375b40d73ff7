"""Who is admitted and who is refused: tokens, certificates, revocation, plaintext."""

from __future__ import annotations

import dataclasses
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from cryptography import x509

from atoll.client._connection.identity import load
from atoll.datacenter.cli.enrol import enrol
from atoll.wire.join_token import JoinToken
from atoll.wire.v1 import control_pb2, control_pb2_grpc, enrolment_pb2, enrolment_pb2_grpc, participation_pb2_grpc
from tests.patience import WAIT_S, kept
from tests.ports import free_ports
from tests.system.clients import Client, insecure_id
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.processes import ATOLL, Nursery
from tests.system.reference import LARGE_JOB, LARGE_MODEL, MODEL, assert_close, averaged, shares_of
from tests.system.servers import Server

pytestmark = pytest.mark.system

NOT_PERMITTED, USAGE = 4, 2
REVOKED_WITHIN_S = 5.0


def last_line(client: Client) -> str:
    """Its last line of standard error."""
    return client.process.log.strip().splitlines()[-1]


def test_tokens_that_do_not_admit_are_refused_with_the_reason(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    good, other, brief = *operator.tokens(2), operator.tokens(1, lifetime_s=0.01)[0]
    threading.Event().wait(0.02)
    first = crew.start("Steady", token=good)
    first.wait("connected")
    forged = dataclasses.replace(JoinToken.decode(other), secret="guessed").encode()
    cases = {
        good: (NOT_PERMITTED, "has been used; each admits one participant"),
        brief: (NOT_PERMITTED, "has expired"),
        forged: (NOT_PERMITTED, "the join token is not known here"),
        other[:-40]: (USAGE, "the join token"),
    }
    clients = {token: crew.start("Steady", token=token) for token in cases}
    for token, (code, words) in cases.items():
        assert clients[token].process.wait() == code
        assert words in last_line(clients[token])
        assert "Traceback" not in clients[token].process.log
    assert crew.start("Steady", token=other).wait("connected")  # a wrong guess has not spent the token
    assert first.process.running


def test_the_same_identity_works_once_at_a_time(shared_server: Server, hire: Hire) -> None:
    crew = hire(shared_server)
    first = crew.start("Steady")
    first.wait("connected")
    second = crew.add("Steady")
    second.state.symlink_to(first.state)
    assert second.start().process.wait() == USAGE
    assert f"process {first.process.pid} already works" in last_line(second)


def test_revoked_it_is_cut_off_within_five_seconds_and_cannot_come_back(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    at_work, idle = crew.start("Held", index=1), crew.start("Steady", index=2)
    toml = job_toml(job={"name": "revoked", "rounds": 1}, cohort={"size": 3, "quorum": 1})
    run = operator.submit(toml, MODEL)
    at_work.wait("held")
    idle.wait("reported")
    revoked_at = time.monotonic()
    for client in (at_work, idle):
        operator.revoke(client.participant, "laptop stolen")
    for client in (at_work, idle):
        assert client.process.wait() == NOT_PERMITTED
        assert "was revoked: laptop stolen" in last_line(client)
    assert kept(time.monotonic() - revoked_at, REVOKED_WITHIN_S)

    operator.finished(run)  # what it had reported before counts; what it had not will not come
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0, 2]), 0))
    rows = operator.participants()
    for client in (at_work, idle):
        row = rows[client.participant]
        assert row.revoked_at > 0
        assert not row.connected
        client.start()
    for client in (at_work, idle):
        assert client.process.wait() == NOT_PERMITTED
        assert "was revoked: laptop stolen" in last_line(client)


def test_revoked_in_its_upload_it_is_cut_off_within_five_seconds(shared_server: Server, hire: Hire) -> None:
    """No chunk flows while the stream is held, but the refusal still arrives."""
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    uploading = crew.start("HeldUpload", index=2)
    run = operator.submit(LARGE_JOB.replace("quorum = 3", "quorum = 2"), LARGE_MODEL)
    uploading.wait("held")
    revoked_at = time.monotonic()
    operator.revoke(uploading.participant, "left the study")
    assert uploading.process.wait() == NOT_PERMITTED
    assert kept(time.monotonic() - revoked_at, REVOKED_WITHIN_S)
    operator.finished(run)
    assert_close(operator.arrays(run), averaged(LARGE_MODEL, shares_of([0, 1]), 0))


def test_certificates_are_renewed_while_work_goes_on_beyond_their_life(serve: Serve, hire: Hire) -> None:
    """The work begins under a certificate of 30 s and is reported after its expiry, over a renewed stream."""
    began = time.monotonic()
    server = serve("brief", "--certificate-lifetime-s", "30")
    crew = hire(server)
    crew.steady(1)
    working = crew.start("Held", index=1, obey=False)
    toml = job_toml(
        job={"name": "brief", "rounds": 2},
        cohort={"size": 2, "quorum": 2},
        straggler={"report_window_s": 120, "max_attempts": 1},
    )
    run = server.operator.submit(toml, MODEL)
    working.wait("held")
    first = certificate_of(working)
    working.wait("renewed")
    assert len(working.events("renewed")) == 1
    threading.Event().wait((first.not_valid_after_utc - datetime.now(UTC)).total_seconds() + 1.0)
    working.go()
    server.operator.finished(run)
    assert len(working.events("invited")) == 2
    assert certificate_of(working).serial_number != first.serial_number
    for client in crew.clients:
        renewals = len(client.events("renewed"))
        assert 1 <= renewals <= 1 + (time.monotonic() - began) / 15.0, (
            "a certificate is renewed in the last half of its life"
        )
        assert len(client.events("connected")) == renewals + 1  # each on a new stream, and no other was lost


def certificate_of(client: Client) -> x509.Certificate:
    """The client's current certificate."""
    return x509.load_pem_x509_certificate(client.identity["certificate_pem"].encode())


def test_certificates_open_only_the_doors_that_they_are_for(shared_server: Server, hire: Hire) -> None:
    client = hire(shared_server).start("Steady")
    client.wait("connected")
    found = client.identity
    ca = found["ca_certificate_pem"].encode()
    own = grpc.ssl_channel_credentials(ca, found["key_pem"].encode(), found["certificate_pem"].encode())
    with grpc.secure_channel(shared_server.address, own) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            control_pb2_grpc.ControlServiceStub(channel).ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "needs an operator's certificate" in str(refused.value.details())
    for credentials in (grpc.ssl_channel_credentials(ca), None):  # no certificate; no TLS
        opened = grpc.secure_channel(shared_server.address, credentials) if credentials else None
        with opened or grpc.insecure_channel(shared_server.address) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                control_pb2_grpc.ControlServiceStub(channel).ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    operator = shared_server.operator
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(participation_pb2_grpc.ParticipationServiceStub(operator.channel).CheckIn(iter(()), timeout=WAIT_S)))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    request = enrolment_pb2.RenewRequest(csr_pem=b"")
    with pytest.raises(grpc.RpcError) as refused:
        enrolment_pb2_grpc.RenewalServiceStub(operator.channel).Renew(request, timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_another_federations_certificate_is_not_let_in(shared_server: Server, serve: Serve, hire: Hire) -> None:
    elsewhere = serve("elsewhere")
    stranger = hire(elsewhere).add("Steady", "--server", shared_server.address)
    stranger.start()
    lost = stranger.wait("disconnected")
    assert lost["reason"].startswith("UNAVAILABLE")
    assert not stranger.events("connected")


def test_plaintext_only_when_asked_for_and_on_loopback(processes: Nursery, serve: Serve, hire: Hire) -> None:
    folder, everywhere = processes.folder, ".".join("0000")
    server_options = ("--insecure", "--data", str(folder / "exposed"), "--host", everywhere)
    exposed = processes.start((*ATOLL, "server", "start", *server_options), "exposed")
    client_options = ("--insecure", "--state", str(folder / "remote"), "--server", "192.0.2.1:7400")
    remote = processes.start(
        (*ATOLL, "client", "start", "participants:Steady", *client_options, "--participant", insecure_id(0)), "remote"
    )
    assert exposed.wait() == USAGE
    assert "plaintext is for loopback only" in exposed.log
    assert not (folder / "exposed" / "atoll.sqlite3").exists()
    assert remote.wait() == USAGE
    assert "not loopback" in remote.log

    server = serve("plain", insecure=True)
    crew = hire(server)
    crew.steady(2)
    run = server.operator.submit(job_toml(job={"name": "plain", "rounds": 1}, cohort={"size": 2}), MODEL)
    server.operator.finished(run)
    assert_close(server.operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))


def test_a_data_directory_and_a_port_belong_to_one_server(serve: Serve, processes: Nursery) -> None:
    server = serve("first")
    same_data = processes.start(
        (*ATOLL, "server", "start", "--data", str(server.data), "--port", str(free_ports())), "same-data"
    )
    same_port = processes.start(
        (*ATOLL, "server", "start", "--data", str(processes.folder / "other"), "--port", str(server.port)), "same-port"
    )
    assert same_data.wait() == 1
    assert f"another server (process {server.process.pid}) runs on the data directory {server.data}" in same_data.log
    assert same_port.wait() == 1
    assert f"cannot listen on 127.0.0.1:{server.port}" in same_port.log
    for refused in (same_data, same_port):
        assert "Traceback" not in refused.log
        assert "add_port" not in refused.log, "gRPC's own line"
    assert server.operator.participants() == {}  # the first serves on


@pytest.mark.parametrize("handshakes", [500, pytest.param(1500, marks=pytest.mark.every_case)])
def test_a_storm_of_handshakes_leaves_it_standing(shared_server: Server, handshakes: int) -> None:
    """gRPC calls back into the server at each handshake, in many threads at once."""
    host, _, port = shared_server.address.partition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    enrolment = (host, int(port) + 1)

    def shake(_: int) -> str | None:
        with socket.create_connection(enrolment, WAIT_S) as plain, context.wrap_socket(plain) as secure:
            return secure.selected_alpn_protocol()

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(shake, range(handshakes))) == {"h2"}
    assert shared_server.process.running


def test_a_silo_enrols_before_its_machines_join_and_spends_one_token(shared_server: Server, tmp_path: Path) -> None:
    first, second = shared_server.operator.tokens(2)
    words = ["--state", str(tmp_path), "--json"]
    made = CliRunner().invoke(enrol, ["--join", first, *words])
    assert made.exit_code == 0, made.output
    again = CliRunner().invoke(enrol, ["--join", second, *words])
    assert json.loads(again.output) == json.loads(made.output)
    assert "the token was not used" in CliRunner().invoke(enrol, ["--join", second, *words[:-1]]).output
    identity = load(tmp_path)
    assert identity is not None
    assert json.loads(made.output)["participant"] == identity.participant
    assert "PRIVATE KEY" not in made.output
    elsewhere = CliRunner().invoke(enrol, ["--join", second, "--state", str(tmp_path / "other"), "--json"])
    assert json.loads(elsewhere.output)["participant"] != identity.participant
