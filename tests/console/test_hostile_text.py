"""Text that participants chose, on the console's pages: it is shown as text, and nothing of it is markup."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import grpc
import pytest

from tests.console.browser import Running, running
from tests.server.cli.test_hostile_text import Hostile

PAGES = (
    "/",
    "/runs/r1",
    "/runs/r1/rounds/1",
    "/runs/r1/rounds/1?status=%3Cscript%3E",
    "/runs/r1/privacy",
    "/runs/r1/cancel",
    "/start",
    "/start?like=r1",
    "/privacy",
    "/privacy/p",
    "/log",
    "/log?level=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    "/participants",
    "/participants?organisation=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
    "/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E/rounds/1",
    "/runs/r1/rounds/%3Cscript%3E",
    "/%3Cscript%3Ealert(1)",
)


class Tags(HTMLParser):
    """The scripts and the event handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.dangers: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        scripted = tag == "script" and dict(attrs) != {"src": "/static/console.js", "defer": None}
        targets = [value or "" for name, value in attrs if name in ("href", "action")]
        if (
            scripted
            or any(name.startswith("on") for name in names)
            or any(not one.startswith(("/", "#")) for one in targets)
        ):
            self.dangers.append((tag, attrs))


@pytest.fixture
def hostile() -> Iterator[tuple[Hostile, Running]]:
    handler = Hostile()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with running(f"127.0.0.1:{port}") as console:
        yield handler, console
    server.stop(None).wait()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("refuses", [False, True])
def test_no_page_passes_it_on(hostile: tuple[Hostile, Running], path: str, *, refuses: bool) -> None:
    handler, console = hostile
    browser = console.browser()
    handler.refuses = refuses
    answer = browser.get(path)
    assert answer.status in (200, 404)
    tags = Tags()
    tags.feed(answer.text)
    assert tags.dangers == []
    assert "<script>alert" not in answer.text
    assert not {char for char in answer.text if not char.isprintable()} - {"\n"}
