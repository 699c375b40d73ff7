"""docs/api: each module that users import is there, its public names exist, and each has a docstring to show."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from tests.docs.commands import ROOT

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
SHOWN = [
    (found[1], found[2] or "")
    for page in PAGES
    for found in re.finditer(
        r"^::: (\S+)\n(?:    options:\n      members: \[(.*)\])?", page.read_text(encoding="utf-8"), re.MULTILINE
    )
]
MODULES = {
    "atoll.client",
    "atoll.client.torch",
    "atoll.client.testing",
    "atoll.operator",
    "atoll.statistics",
    "atoll.simulation",
    "atoll.simulation.data",
    "atoll.datacenter.fit",
}


def test_the_public_modules_are_shown() -> None:
    assert {name for name, _ in SHOWN} >= MODULES


@pytest.mark.parametrize(("name", "members"), SHOWN)
def test_every_name_on_the_page_has_a_docstring(name: str, members: str) -> None:
    missing = [
        one
        for one, shown in public(name, members)
        if (inspect.isclass(shown) or inspect.isroutine(shown)) and not shown.__doc__
    ]
    assert missing == []


def public(name: str, members: str) -> list[tuple[str, object]]:
    """The names that a directive shows, with what they are."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return [(last, getattr(importlib.import_module(parent), last))]
    chosen = members.split(", ") if members else getattr(module, "__all__", None)
    assert chosen is not None, f"{name} has no __all__: list members"
    return [(one, getattr(module, one)) for one in chosen]


@pytest.mark.parametrize(("name", "members"), [one for one in SHOWN if one[0] in MODULES])
def test_public_methods_have_docstrings(name: str, members: str) -> None:
    missing = [
        f"{one}.{method}"
        for one, shown in public(name, members)
        if inspect.isclass(shown) and shown.__module__.startswith("atoll.")
        for method, found in vars(shown).items()
        if not method.startswith("_")
        and isinstance(found, property | staticmethod | classmethod) | inspect.isroutine(found)
        if not inspect.getdoc(getattr(shown, method))
    ]
    assert missing == []
