"""Every line that tells a reader to install Atoll installs a checkout, with the versions that it is tested with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.text.installing import install_hint, install_line

ROOT = Path(__file__).parents[1]
FILES = ("README.md", "Dockerfile", "Makefile", "pyproject.toml")
FOLDERS = ("protos", "common", "client", "server", "datacenter", "docs", "examples", "benchmarks", "deploy")
TOLD = {".md", ".py", ".ipynb", ".toml", ".html", ".service", ".yml", ""}
"""Endings of files that tell people, or processes, what to install; the last: Dockerfile, Makefile."""
COMMAND = re.compile(r"\bpip install\b[^`\n]*")
OURS = re.compile(r"""(?<![\w./-])(\.|atoll)(\[|["'\s;,]|$)""")
"""What a command installs is Atoll: a path, or the name, which belongs to another project on a package index."""


def commands() -> Iterator[tuple[str, str]]:
    """Each ``pip install …`` that installs Atoll, with where it is."""
    below = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    for path in (*(ROOT / name for name in FILES), *below):
        if path.suffix not in TOLD or not path.is_file():
            continue
        for found in COMMAND.finditer(path.read_text(encoding="utf-8")):
            if OURS.search(found[0].removeprefix("pip install")):
                yield str(path.relative_to(ROOT)), found[0]


def test_hints() -> None:
    assert install_line() == "pip install -c constraints.txt -e ."
    assert install_hint("server,privacy") == (
        'pip install -c constraints.txt -e ".[server,privacy]" in a checkout of Atoll'
    )


def test_every_line_installs_a_checkout_with_its_constraints() -> None:
    found = list(commands())
    assert {"README.md", "Dockerfile", "docs/silo.md", "docs/deployment.md"} <= {n for n, _ in found}
    allowed = {("README.md", "pip install atoll")}  # which says that there is no such thing
    wrong = [(name, line) for name, line in found if "-c constraints.txt" not in line or re.search(r"\batoll\b", line)]
    assert set(wrong) == allowed


@pytest.mark.parametrize(
    "line", ["pip install 'atoll[server]'", 'pip install -e ".[server]"', "pip install -e .", "pip install atoll"]
)
def test_the_check_sees_what_is_wrong(line: str) -> None:
    found = COMMAND.search(f"first {line} then")
    assert found is not None
    assert OURS.search(found[0].removeprefix("pip install"))
    assert "-c constraints.txt" not in line
