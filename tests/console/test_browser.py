"""The console in a real browser: Debian's Chromium, driven by Playwright.

What needs no browser is tested over plain HTTP in the other modules. ``make screenshots`` has ``test_picture``
draw the pictures of docs/console.md.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect, sync_playwright

from atoll.wire.v1 import control_pb2
from tests.console.browser import Running, running
from tests.console.conftest import Watched
from tests.console.study import ROUNDS, a_round, participant, study
from tests.patience import WAIT_S
from tests.ports import free_ports
from tests.server.cli.conftest import Fake, serve, summary

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".tools" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MAX_PICTURE_BYTES = 150_000
ANSWERED = ("404 (Not Found)", "503 (Service Unavailable)")
"""Answers that a test has the console give, which the browser reports as errors."""
PAGES = (
    "/",
    "/runs/rabc",
    f"/runs/rabc/rounds/{ROUNDS}",
    "/runs/rabc/cancel",
    "/runs/rabc/privacy",
    "/participants",
    f"/participants/{participant(5)}",
    "/privacy",
    "/privacy/hospitals",
    "/log",
    "/start?like=rabc",
    "/nothing",
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium (Debian: chromium) is not installed"),
]


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    found = playwright.chromium.launch(executable_path=CHROMIUM, timeout=WAIT_S * 1000)
    yield found
    found.close()


@pytest.fixture
def control() -> Watched:
    return study()


@pytest.fixture
def fake(control: Watched) -> Iterator[Fake]:
    """At a port that no other process of tests gets while the server is away."""
    yield from serve(lambda server: server.add_insecure_port(f"127.0.0.1:{free_ports()}"), control)


@pytest.fixture
def console(fake: Fake) -> Iterator[Running]:
    with running(fake.address) as found:
        yield found


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    found = chromium.new_context(viewport={"width": 1200, "height": 800})
    found.set_default_timeout(WAIT_S * 1000)
    expect.set_options(timeout=WAIT_S * 1000)
    yield found
    found.close()


@pytest.fixture
def page(console: Running, context: BrowserContext) -> Iterator[Page]:
    """A page that has come in by the link; it must not report an error, nor anything that the policy blocks."""
    found = context.new_page()
    with reporting(found):
        enter(found, console)
        yield found


@pytest.fixture(scope="module")
def still(chromium: Browser) -> Iterator[Page]:
    """A page, with the checks of accessibility in it, for tests that only look: what it shows never changes."""
    for fake in serve(lambda server: server.add_insecure_port("127.0.0.1:0"), study()):
        with running(fake.address) as console, chromium.new_context(viewport={"width": 1200, "height": 800}) as context:
            context.set_default_timeout(WAIT_S * 1000)
            found = context.new_page()
            if AXE.exists():
                found.add_init_script(path=AXE)  # the policy of the pages keeps scripts out, but not the driver's
            enter(found, console)
            yield found


@pytest.fixture
def looked_at(still: Page) -> Iterator[Page]:
    """The page of ``still``; as ``page``, it must not report an error, nor anything that the policy blocks."""
    with reporting(still):
        yield still


@contextlib.contextmanager
def reporting(page: Page) -> Iterator[None]:
    errors: list[str] = []

    def noted(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    def failed(error: object) -> None:
        errors.append(str(error))

    page.on("pageerror", failed)
    page.on("console", noted)
    yield
    page.remove_listener("pageerror", failed)
    page.remove_listener("console", noted)
    assert [error for error in errors if not any(one in error for one in ANSWERED)] == []


def enter(page: Page, console: Running) -> None:
    """By a link, whose page leads on by itself."""
    page.goto(console.console.make_link())
    page.wait_for_url(f"http://127.0.0.1:{console.port}/")


def go(page: Page, path: str) -> None:
    page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/", 3)[2] + path)


def test_a_link_lets_one_browser_in(console: Running, chromium: Browser, page: Page) -> None:
    link = console.console.make_link()
    page.goto(link)
    page.wait_for_url(f"http://127.0.0.1:{console.port}/")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    other = chromium.new_page()
    answer = other.goto(link)
    assert answer is not None
    assert answer.status == 403
    other.close()


def test_a_page_updates_without_a_reload(page: Page, control: Watched) -> None:
    """No reload, no jump: the new round appears, and what one has opened stays open."""
    go(page, "/runs/rabc")
    page.get_by_text("Job file").click()
    page.evaluate("window.kept = true")
    expect(page.locator("#live-status")).to_have_text("")
    control.rounds[-1:] = [a_round(ROUNDS), a_round(ROUNDS + 1, "open")]
    control.changes.put(control_pb2.WatchRunResponse(summary=summary(released=1)))
    expect(page.locator("#rounds").get_by_role("link", name=str(ROUNDS + 2), exact=True)).to_be_visible()
    expect(page.locator("#tiles")).to_contain_text(f"{ROUNDS + 1}")
    expect(page.locator("#live-status")).to_contain_text("Live: running")
    expect(page.locator("#job pre")).to_be_visible()
    assert page.evaluate("window.kept") is True


def test_the_focus_stays_where_it_was(page: Page, control: Watched) -> None:
    go(page, "/runs/rabc")
    link = page.locator("#rounds").get_by_role("link", name=str(ROUNDS), exact=True)
    link.focus()
    control.rounds[-1:] = [a_round(ROUNDS), a_round(ROUNDS + 1, "open")]
    control.changes.put(control_pb2.WatchRunResponse(summary=summary(released=1)))
    expect(page.locator("#rounds").get_by_role("link", name=str(ROUNDS + 2), exact=True)).to_be_visible()
    expect(link).to_be_focused()


def test_the_end_of_a_run_is_said(page: Page, control: Watched) -> None:
    go(page, "/runs/rabc")
    control.status = control_pb2.RUN_STATUS_FINISHED
    control.changes.put(control_pb2.WatchRunResponse(summary=summary(control_pb2.RUN_STATUS_FINISHED)))
    expect(page.locator("#live-status")).to_have_text("The run has ended.")
    expect(page.locator("#head .badge")).to_have_text("finished")
    expect(page.locator("#actions")).not_to_contain_text("Pause")


@pytest.mark.parametrize("path", ["/", "/participants"])
def test_a_list_comes_back_with_its_server(page: Page, fake: Fake, path: str) -> None:
    go(page, path)
    page.evaluate("window.kept = true")
    expect(page.locator("#live-status")).to_contain_text("Live: ")
    fake.stop()
    expect(page.locator("#live-status")).to_contain_text("Not live: cannot reach the server")
    for _ in serve(lambda server: server.add_insecure_port(fake.address), study()):
        expect(page.locator("#live-status")).to_contain_text("Live: ")
    assert page.evaluate("window.kept") is True


def test_a_run_is_followed_on_once_its_server_answers_again(page: Page, fake: Fake) -> None:
    """The page was opened while the server was there, its stream of events when it was not."""
    go(page, "/runs/rabc")
    page.evaluate("window.kept = true")
    page.get_by_role("button", name="Live").click()
    fake.stop()
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live-status")).to_contain_text("Not live: cannot reach the server")
    control = study()
    for _ in serve(lambda server: server.add_insecure_port(fake.address), control):
        control.changes.put(control_pb2.WatchRunResponse(summary=summary(released=1)))
        expect(page.locator("#live-status")).to_contain_text("Live: running")
    assert page.evaluate("window.kept") is True


def test_live_updates_can_be_stopped(page: Page) -> None:
    toggle = page.get_by_role("button", name="Live")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    expect(page.locator("#live-status")).to_have_text("Live updates are off.")
    go(page, "/participants")
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")


def test_a_run_is_cancelled_with_the_keyboard_alone(page: Page, control: Watched) -> None:
    go(page, "/runs/rabc")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    tab_to(page, "Cancel…")
    page.keyboard.press("Enter")
    page.wait_for_url("**/cancel")
    tab_to(page, "Reason")
    page.keyboard.type("wrong data")
    tab_to(page, "Cancel the run")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/rabc?done=cancel")
    expect(page.get_by_text("The run is cancelled.")).to_be_visible()
    assert control.cancelled == ["wrong data"]


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element of this name has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()")
        if str(focused).startswith(name):
            return
    raise AssertionError(f"{name} cannot be reached with the keyboard")


def test_a_run_is_paused_by_its_button(page: Page) -> None:
    go(page, "/runs/rabc")
    page.get_by_role("button", name="Pause").click()
    page.wait_for_url("**/runs/rabc?done=pause")
    expect(page.get_by_text("The run pauses when the round in progress has ended.")).to_be_visible()


def test_a_page_of_another_site_does_nothing(page: Page, context: BrowserContext, control: Watched) -> None:
    """With the console open in the same browser, a form of another site has no cookie, and is refused."""
    target = page.url + "runs/rabc/cancel"
    form = f'<form method="post" action="{target}"><input name="reason" value="x"></form>'
    text = f"{form}<script>document.forms[0].submit()</script>"

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        evil = context.new_page()
        with evil.expect_response(lambda answer: answer.request.method == "POST") as answered:
            evil.goto(f"http://localhost:{server.server_port}/")
        assert answered.value.status == 403
        evil.close()
        server.shutdown()
        thread.join(WAIT_S)
    assert control.cancelled == []
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_a_narrow_screen(looked_at: Page, path: str) -> None:
    """No page is wider than a telephone: wide tables scroll by themselves."""
    looked_at.set_viewport_size({"width": 360, "height": 700})
    go(looked_at, path)
    assert looked_at.evaluate("document.documentElement.scrollWidth") <= 360


def test_colours_follow_the_browsers_theme(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make browser-tools")
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(looked_at: Page, path: str) -> None:
    """The checks of accessibility that a program can make, WCAG 2.2 A and AA and best practices.

    Those of colours again in the dark theme, in which nothing else differs.
    """
    looked_at.set_viewport_size({"width": 1200, "height": 800})
    looked_at.emulate_media(color_scheme="light")
    go(looked_at, path)
    found = looked_at.evaluate("axe.run()")
    assert violations(found) == []
    assert len(found["passes"]) > 10
    looked_at.emulate_media(color_scheme="dark")
    found = looked_at.evaluate("axe.run({runOnly: ['color-contrast', 'link-in-text-block']})")
    assert violations(found) == []
    assert found["passes"]


def violations(found: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """What axe found wrong: the check, how bad it is, and the first elements."""
    return [(one["id"], one["impact"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]]


@pytest.mark.parametrize(
    ("name", "path"),
    [("run", "/runs/rabc"), ("round", f"/runs/rabc/rounds/{ROUNDS}"), ("participants", "/participants")],
)
def test_picture(page: Page, tmp_path: Path, name: str, path: str) -> None:
    """The pictures of docs/console.md; without ``ATOLL_SCREENSHOTS`` they are drawn and thrown away."""
    folder = ROOT / os.environ["ATOLL_SCREENSHOTS"] if "ATOLL_SCREENSHOTS" in os.environ else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": 1100, "height": 860})
    go(page, path)
    if path == "/participants":
        expect(page.locator("#live-status")).to_contain_text("Live: 7 participants connected")
    picture = folder / f"{name}.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size < MAX_PICTURE_BYTES
    named = re.findall(r"assets/console/(\w+)\.png", (ROOT / "docs" / "console.md").read_text(encoding="utf-8"))
    assert name in named
