import socket
import socketserver
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest

from atoll.server.errors import SetupError, StorageError
from atoll.server.telemetry import endpoint as endpoints
from atoll.server.telemetry.endpoint import Endpoint, Page
from tests.patience import WAIT_S


def broken() -> Page:
    raise StorageError("store.busy", "too much work", "wait")


def late() -> Page:
    raise TimeoutError


def faulty() -> Page:
    raise KeyError("a bug")


PAGES: dict[str, Callable[[], Page]] = {
    "/metrics": lambda: Page(b"up 1\n"),
    "/broken": broken,
    "/late": late,
    "/faulty": faulty,
}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", 0, PAGES)
    yield made
    made.close()


def fetch(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def is_cut_off(connection: socket.socket) -> bool:
    """Whether the peer closes a connection whose request arrives byte by byte, before it has 1,000 bytes."""
    for _ in range(1000):
        try:
            connection.sendall(b"x")
            return connection.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_pages_by_path_whatever_the_query(endpoint: Endpoint) -> None:
    assert fetch(endpoint, "/metrics?collect=all") == (HTTPStatus.OK, b"up 1\n")
    assert fetch(endpoint, "/metrics", "HEAD") == (HTTPStatus.OK, b"")


def test_an_unknown_path_is_told_what_there_is(endpoint: Endpoint) -> None:
    assert fetch(endpoint, "/") == (HTTPStatus.NOT_FOUND, b"there are: /broken /faulty /late /metrics\n")
    assert fetch(endpoint, "/metrics", "POST")[0] == HTTPStatus.NOT_IMPLEMENTED


@pytest.mark.parametrize(("path", "said"), [("/broken", b"too much work\n"), ("/late", b"timed out\n")])
def test_a_page_that_cannot_be_made_is_unavailable(endpoint: Endpoint, path: str, said: bytes) -> None:
    assert fetch(endpoint, path) == (HTTPStatus.SERVICE_UNAVAILABLE, said)


def test_idle_connections_take_no_more_than_their_places(endpoint: Endpoint) -> None:
    with_places = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(endpoints.MAX_CONNECTIONS)]
    one_more = socket.create_connection(("127.0.0.1", endpoint.port))
    one_more.settimeout(WAIT_S)
    assert one_more.recv(1) == b""
    for connection in (*with_places, one_more):
        connection.close()


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "IDLE_S", 0.05)
    made = Endpoint("127.0.0.1", 0, PAGES)
    with socket.create_connection(("127.0.0.1", made.port)) as connection:
        connection.settimeout(WAIT_S)
        connection.sendall(b"GET /metr")
        assert connection.recv(1) == b""
    made.close()


def test_a_request_that_trickles_in_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives well within the idle time, so only a total deadline ends the request."""
    made = Endpoint("127.0.0.1", 0, PAGES)
    with monkeypatch.context() as short:
        short.setattr(endpoints, "TOTAL_S", 0.3)
        with socket.create_connection(("127.0.0.1", made.port)) as connection:
            connection.settimeout(0.02)
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
            assert is_cut_off(connection)
    assert fetch(made, "/metrics") == (HTTPStatus.OK, b"up 1\n")
    made.close()


def test_a_thread_that_cannot_be_started_gives_its_place_back(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(socketserver.ThreadingMixIn, "process_request", refused)
        for _ in range(endpoints.MAX_CONNECTIONS + 1):
            with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
                connection.settimeout(WAIT_S)
                assert connection.recv(1) == b""
    assert fetch(endpoint, "/metrics") == (HTTPStatus.OK, b"up 1\n")


def test_a_port_in_use_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(SetupError, match=f"127.0.0.1:{endpoint.port}"):
        Endpoint("127.0.0.1", endpoint.port, PAGES)


def test_an_unexpected_error_is_logged_and_not_sent_to_the_caller(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert fetch(endpoint, "/faulty") == (HTTPStatus.INTERNAL_SERVER_ERROR, b"see the server's log\n")
    assert "a bug" in caplog.text
