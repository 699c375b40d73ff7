"""Access over HTTP: by a link, from this site, with a session."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.console.browser import Browser, Running

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("path", ["/", "/runs/rabc", "/participants", "/events/runs", "/nothing"])
def test_without_a_session_nothing_is_shown(console: Running, path: str) -> None:
    answer = Browser(console.port).get(path)
    assert answer.status == 401
    assert "atoll console" in answer.text
    assert "digits" not in answer.text


def test_a_link_lets_one_browser_in(console: Running) -> None:
    link, first, second = console.console.make_link(), Browser(console.port), Browser(console.port)
    answer = first.open(link)
    assert answer.status == 200
    name, _, attributes = answer.headers["set-cookie"].partition("=")
    assert name == f"atoll-console-{console.port}"
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(attributes.split("; "))
    assert first.get("/").status == 200
    assert second.open(link).status == 403
    assert second.get("/").status == 401
    assert first.get("/").status == 200


def test_a_look_ahead_does_not_use_the_link(console: Running) -> None:
    link, browser = console.console.make_link(), Browser(console.port)
    assert browser.ask("HEAD", urlsplit(link).path).status == 403
    assert browser.open(link).status == 200


def test_a_wrong_link_admits_no_visitor(console: Running) -> None:
    console.console.make_link()
    assert Browser(console.port).open(f"http://127.0.0.1:{console.port}/open/guess").status == 403


def test_a_made_up_cookie_is_no_session(console: Running) -> None:
    browser = Browser(console.port)
    browser.cookie = f"atoll-console-{console.port}=guess"
    assert browser.get("/").status == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost:1", ""])
def test_a_request_must_name_this_host(browser: Browser, host: str) -> None:
    """A name that resolves to this machine does not make a page of another site one of ours (DNS rebinding)."""
    answer = browser.get("/", host=host)
    assert answer.status == 421
    assert "digits" not in answer.text
    assert browser.get("/static/console.js", host=host).status == 421


@pytest.mark.parametrize("target", ["x[", "x/static/console.css", "//[", "/%09static/console.css"])
def test_a_strange_target_is_not_public(console: Running, target: str) -> None:
    assert Browser(console.port).get(target).status == 401


@pytest.mark.parametrize("path", ["/participants/", "/static"])
def test_no_path_is_redirected(browser: Browser, path: str) -> None:
    """A proxy may have https where the console has http: an absolute redirect would leave TLS."""
    answer = browser.get(path)
    assert (answer.status, answer.headers.get("location")) == (404, None)


def test_each_name_of_this_machine_will_do(browser: Browser) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert browser.get("/", host=f"{host}:{browser.port}").status == 200


@pytest.mark.parametrize("path", ["/", "/static/console.js", "/open/guess", "/runs/other", "/nothing", "/static/none"])
def test_every_answer_has_the_headers(browser: Browser, path: str) -> None:
    headers = browser.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_form_signs_out(browser: Browser) -> None:
    token = browser.form_token()
    assert browser.post("/leave", {"form_token": token}).status == 200
    assert browser.get("/").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_site_changes_nothing_even_with_the_token(browser: Browser, headers: dict[str, str]) -> None:
    fields = {"form_token": browser.form_token()}
    assert browser.post("/leave", fields, **headers).status == 403
    assert browser.get("/").status == 200


def test_a_form_without_the_sessions_token_changes_nothing(console: Running, browser: Browser) -> None:
    other = console.browser().form_token()
    for token in ("", "guess", other):
        assert browser.post("/leave", {"form_token": token}).status == 403
    assert browser.post("/leave", {}).status == 403
    assert browser.get("/").status == 200


def test_a_form_is_bounded(browser: Browser) -> None:
    assert browser.post("/leave", {"form_token": "x" * (1 << 20)}).status == 413
    assert browser.post("/leave", {str(number): "x" for number in range(40)}).status == 400
    own = {"origin": browser.origin, "sec_fetch_site": "same-origin"}
    assert browser.ask("POST", "/leave", "a=%ff", **own).status == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(browser: Browser, method: str) -> None:
    assert browser.ask(method, "/").status == 403
    assert browser.ask(method, "/", origin=browser.origin).status == 405


def test_no_page_has_anything_that_the_policy_forbids(browser: Browser) -> None:
    shown = ("/", "/runs/rabc", "/runs/rabc/rounds/1", "/runs/rabc/cancel", "/start", "/privacy", "/participants")
    for path in shown:
        text = browser.get(path).text
        assert "<style" not in text
        assert " style=" not in text
        assert " on" not in {part[:3] for part in text.split("=")}
        assert "<script>" not in text
        assert "http://" not in text
        assert "https://" not in text
