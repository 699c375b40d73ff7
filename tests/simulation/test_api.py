"""The public surface of ``atoll.simulation``, which loads each name when it is first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import atoll.simulation


def test_every_public_name_is_there() -> None:
    assert [name for name in atoll.simulation.__all__ if not hasattr(atoll.simulation, name)] == []
    assert set(atoll.simulation.__all__) <= set(dir(atoll.simulation))


def test_names_are_loaded_from_where_type_checkers_find_them() -> None:
    text = Path(atoll.simulation.__file__).read_text(encoding="utf-8")
    found = {
        alias.name: node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in atoll.simulation.__all__:
        assert getattr(atoll.simulation, name) is getattr(sys.modules[str(found[name])], name)


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"module 'atoll.simulation' has no attribute 'Federations'"):
        _ = atoll.simulation.Federations  # type: ignore[attr-defined]


def test_help_of_all_commands_loads_no_simulation() -> None:
    """It names ``simulate``, for which it loads ``atoll.simulation.cli`` and the package around it."""
    code = (
        "import sys; from atoll.client.cli.app import run_cli; run_cli(['--help']);"
        "print(sorted(name for name in sys.modules if name.startswith('atoll.simulation.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "simulate" in done.stdout
    assert done.stdout.splitlines()[-1] == "['atoll.simulation.cli', 'atoll.simulation.collector']"
