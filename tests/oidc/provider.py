"""A real provider (npm: oidc-provider) as a process on 127.0.0.1, and a person who signs in."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.patience import WAIT_S

FOLDER = Path(__file__).parent / "node"
MODULES = Path(__file__).parents[2] / ".tools" / "oidc" / "node_modules"
needed = pytest.mark.skipif(not MODULES.is_dir(), reason="`make oidc-provider` installs what it needs (npm)")
MAX_PAGES = 12


@contextlib.contextmanager
def provider(id_token_s: int = 3600) -> Iterator[str]:
    """Its issuer; it ends with the block."""
    command = ["node", str(MODULES.parent / "provider.mjs"), str(id_token_s)]
    (MODULES.parent / "provider.mjs").write_text(
        (FOLDER / "provider.mjs").read_text(encoding="utf-8"), encoding="utf-8"
    )
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(WAIT_S)


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self._within = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "form" and self.action is None:
            self.action, self._within = found.get("action", ""), True
        elif tag in ("input", "button") and self._within and found.get("name"):
            self.fields.setdefault(found["name"], found.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._within = False


class Person:
    """Signs in as ``login``: fills in what each page asks for, until a page has no form."""

    def __init__(self, login: str) -> None:
        self._login = login
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

    def open(self, address: str) -> str:
        """Go through the pages from here on; returns the last one."""
        body: bytes | None = None
        for _ in range(MAX_PAGES):
            with self._opener.open(address, body, timeout=WAIT_S) as answer:
                at, text = answer.url, answer.read().decode()
            form = _Form()
            form.feed(text)
            if form.action is None:
                return str(text)
            given = {"login": self._login, "password": "any", "confirm": "yes"}
            fields = {**form.fields, **{name: value for name, value in given.items() if name in form.fields}}
            if "user_code" in fields:
                fields["confirm"] = "yes"
            fields.pop("abort", None)
            address, body = urllib.parse.urljoin(at, form.action), urllib.parse.urlencode(fields).encode()
        raise AssertionError("the pages do not end")
