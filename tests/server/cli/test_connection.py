from __future__ import annotations

import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from click.testing import CliRunner

from atoll.operator.connecting import find_target
from atoll.operator.errors import BadInputError, NotPermittedError
from atoll.server.cli.run import run
from atoll.server.identity import OPERATOR_FILE, Authority, OperatorCredential
from atoll.wire.v1 import control_pb2, control_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _no_credential_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ATOLL_DATA", "ATOLL_SERVER", "ATOLL_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.open(tmp_path_factory.mktemp("ca"), now=time.time())


def credential(authority: Authority, address: str, now: float | None = None) -> OperatorCredential:
    made = authority.issue_operator("admin", now=time.time() if now is None else now)
    return OperatorCredential(
        name="admin",
        address=address,
        ca_certificate=authority.certificate_pem.decode(),
        certificate=made.issued.pem.decode(),
        key=made.key_pem.decode(),
    )


@pytest.fixture
def secure(fake: Any, authority: Authority) -> Iterator[str]:
    """The fake's services behind mutual TLS; its address."""
    pair = authority.server_key_pair(["127.0.0.1"], now=time.time())
    server = grpc.server(ThreadPoolExecutor(2))
    control_pb2_grpc.add_ControlServiceServicer_to_server(fake.control, server)
    credentials = grpc.ssl_server_credentials(
        [(pair.key_pem, pair.certificate_pem)], authority.certificate_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_the_credential_in_the_data_directory_says_where_and_as_whom(
    secure: str, authority: Authority, tmp_path: Path
) -> None:
    credential(authority, secure).write(tmp_path / OPERATOR_FILE)
    result = CliRunner().invoke(run, ["list", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "digits" in result.stdout


def test_the_credential_of_another_federation_is_explained(secure: str, tmp_path: Path) -> None:
    other = Authority.open(tmp_path / "other", now=time.time())
    credential(other, secure).write(tmp_path / OPERATOR_FILE)
    result = CliRunner().invoke(run, ["list", "--data", str(tmp_path)])
    assert result.exit_code == 3
    assert "belongs to another federation" in result.stderr
    assert "the certificates do not match" in result.stderr


def test_a_balancer_without_a_ready_server_is_no_mismatch_of_certificates(authority: Authority, tmp_path: Path) -> None:
    class Closing(socketserver.BaseRequestHandler):
        """Accepts a connection and closes it, as HAProxy does."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as balancer:
        threading.Thread(target=balancer.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{balancer.server_address[1]}"
        credential(authority, address).write(tmp_path / OPERATOR_FILE)
        result = CliRunner().invoke(run, ["list", "--data", str(tmp_path)])
        balancer.shutdown()
    assert result.exit_code == 3
    assert "a load balancer without a ready server" in result.stderr
    assert "do not match" not in result.stderr


def test_another_port_than_the_main_port_is_explained() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    result = CliRunner().invoke(run, ["list", "--insecure", "--server", address])
    server.stop(None).wait()
    assert result.exit_code == 1
    assert f"{address} is not the main port" in result.stderr
    assert "give the main port (by default 7400" in result.stderr


def test_credentials_are_looked_for_in_order(authority: Authority, tmp_path: Path) -> None:
    places = {name: tmp_path / name / OPERATOR_FILE for name in ("data", "config/atoll", "given")}
    for index, path in enumerate(places.values()):
        path.parent.mkdir(parents=True)
        credential(authority, f"127.0.0.1:{index + 1}").write(path)
    data = tmp_path / "data"
    assert find_target(None, places["given"], data, insecure=False).address == "127.0.0.1:3"
    assert find_target(None, None, data, insecure=False).address == "127.0.0.1:1"
    places["data"].unlink()
    assert find_target(None, None, data, insecure=False).address == "127.0.0.1:2"
    assert find_target("other:9", None, data, insecure=False).address == "other:9"


def test_without_a_credential_the_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotPermittedError, match=r"looked for .*/operator\.json and .*/config/atoll/operator\.json"):
        find_target(None, None, tmp_path, insecure=False)


def test_a_credential_that_others_can_read_is_not_used(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / OPERATOR_FILE
    credential(authority, "127.0.0.1:1").write(path)
    path.chmod(0o644)
    with pytest.raises(NotPermittedError, match="mode 0644"):
        find_target(None, path, None, insecure=False)


@pytest.mark.parametrize("address", ["localhost", "localhost:http", ":7400", "[::1]"])
def test_an_address_needs_host_and_port(address: str) -> None:
    with pytest.raises(BadInputError, match="expected HOST:PORT"):
        find_target(address, None, None, insecure=True)


@pytest.mark.parametrize("address", ["example.org:7400", "10.0.0.1:7400"])
def test_plaintext_stays_on_this_machine(address: str) -> None:
    with pytest.raises(BadInputError, match="for loopback only"):
        find_target(address, None, None, insecure=True)


def test_an_unreachable_server_gives_exit_code_3() -> None:
    result = CliRunner().invoke(run, ["list", "--insecure", "--server", "127.0.0.1:1"])
    assert result.exit_code == 3
    assert "cannot reach the server at 127.0.0.1:1" in result.stderr
    assert "atoll doctor" in result.stderr


def test_a_server_without_the_call_is_old(invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "atoll.wire.v1.control_pb2_grpc.ControlServiceStub",
        _Renamed,
    )
    result = invoke(run, "list")
    assert result.exit_code == 1
    assert "upgrade the server" in result.stderr


class _Renamed:
    """A stub whose calls go to a method that no server has."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> object:
        return self._channel.unary_unary(
            f"/atoll.wire.v1.ControlService/{name}2", request_serializer=control_pb2.ListRunsRequest.SerializeToString
        )


@pytest.mark.parametrize("given", ["option", "variable", "neither"])
def test_every_command_finds_the_data_directory_by_one_rule(
    secure: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """``--data``, else ``$ATOLL_DATA``, else ``./atoll-data``."""
    folder = tmp_path / ("atoll-data" if given == "neither" else "elsewhere")
    folder.mkdir()
    credential(authority, secure).write(folder / OPERATOR_FILE)
    monkeypatch.chdir(tmp_path)
    if given == "variable":
        monkeypatch.setenv("ATOLL_DATA", str(folder))
    arguments = ["list", *(("--data", str(folder)) if given == "option" else ())]
    result = CliRunner().invoke(run, arguments)
    assert result.exit_code == 0, result.output
