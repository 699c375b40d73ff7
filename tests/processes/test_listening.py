"""A server that stops at once, also without any connection."""

import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from atoll.processes.listening import Endable
from tests.patience import WAIT_S


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the base class's name
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's
        del format, args


class Server(Endable, ThreadingHTTPServer):
    pass


def test_it_serves_until_it_is_ended_and_then_returns() -> None:
    server = Server(("127.0.0.1", 0), Hello)
    serving = Thread(target=server.serve)
    serving.start()
    for _ in range(2):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/", timeout=WAIT_S) as answer:
            assert answer.status == 204
    server.end()
    serving.join(WAIT_S)
    assert not serving.is_alive()
    server.server_close()
