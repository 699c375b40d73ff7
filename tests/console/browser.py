"""A console on a real socket, and a browser of a few lines that keeps its cookie."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

from atoll.console.serving import Console, opened
from atoll.console.site import Listening
from atoll.operator import Operator
from tests.patience import WAIT_S


@dataclass(frozen=True)
class Answer:
    """The console's answer."""

    status: int
    headers: Mapping[str, str]
    text: str


class _Fields(HTMLParser):
    """The hidden fields of a page's forms."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden":
            self.found[given["name"] or ""] = given["value"] or ""


class Browser:
    """Requests to one console, with the cookie that it gave."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        connection, answer = self.begin(method, path, body, **headers)
        with contextlib.closing(connection):
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())

    def begin(
        self, method: str, path: str, body: str = "", **headers: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A request whose answer is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie and "cookie" not in given:
            given["cookie"] = self.cookie
        connection.request(method, path, body.encode(), given)
        return connection, connection.getresponse()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """As a form of the console's own sends it, unless headers say otherwise."""
        own = {"origin": self.origin, "sec_fetch_site": "same-origin"}
        return self.ask(
            "POST",
            path,
            urlencode(fields),
            **{**own, "content_type": "application/x-www-form-urlencoded", **headers},
        )

    def form_token(self, path: str = "/") -> str:
        """The hidden fields of a page's forms."""
        fields = _Fields()
        fields.feed(self.get(path).text)
        return fields.found["form_token"]

    def open(self, link: str) -> Answer:
        """Come in by a link, and keep the cookie."""
        answer = self.get(urlsplit(link).path)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    @contextlib.contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, str]]]:
        """The events of a page as (name, text); leaving ends the stream."""
        connection, answer = self.begin("GET", path)
        with contextlib.closing(connection), contextlib.closing(answer):
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _parsed(answer)


def _parsed(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    name = ""
    for raw in answer:
        key, _, value = raw.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


class Running:
    """A console in a thread of its own."""

    def __init__(self, console: Console, port: int) -> None:
        self.console = console
        self.port = port

    def browser(self) -> Browser:
        """A browser that has come in."""
        made = Browser(self.port)
        assert made.open(self.console.make_link()).status == 200
        return made


@contextlib.contextmanager
def running(address: str, listening: Listening | None = None) -> Iterator[Running]:
    """A console of the server at ``address``, which takes operators without a certificate."""
    chosen = listening or Listening(port=0)
    with Operator.connect(address, insecure=True) as operator, opened(chosen) as listener:
        console = Console(operator, chosen, listener)
        thread = threading.Thread(target=lambda: asyncio.run(console.serve()), name="console")
        thread.start()
        try:
            yield Running(console, listener.getsockname()[1])
        finally:
            console.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()
