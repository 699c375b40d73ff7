from __future__ import annotations

import jinja2
import pytest

from atoll.text.templates import environment


@pytest.fixture
def pages() -> jinja2.Environment:
    return environment("atoll.console", shout=str.upper)


def test_all_that_a_page_shows_is_escaped(pages: jinja2.Environment) -> None:
    assert pages.from_string("{{ name }}").render(name="<script>") == "&lt;script&gt;"


def test_pages_share_filters_and_may_have_their_own(pages: jinja2.Environment) -> None:
    text = '{{ 2 | counted("run") }}, {{ "timed_out" | words }}, {{ "a" | shout }}'
    assert pages.from_string(text).render() == "2 runs, timed out, A"


def test_a_name_that_is_not_given_is_an_error(pages: jinja2.Environment) -> None:
    with pytest.raises(jinja2.UndefinedError, match="'run' is undefined"):
        pages.from_string("{{ run }}").render()


def test_pages_share_templates() -> None:
    for package in ("atoll.console", "atoll.server.report"):
        assert environment(package).get_template("statistics_tables.html.j2").name == "statistics_tables.html.j2"
