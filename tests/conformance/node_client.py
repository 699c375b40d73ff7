"""The client in Node: its folder, and its dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"
MODULES = Path(__file__).parents[2] / ".tools" / "conformance" / "node_modules"

needed = pytest.mark.skipif(not MODULES.is_dir(), reason="`make node-client` installs what it needs (npm)")
"""Marks tests of it."""


def command(script: str, *arguments: str) -> list[str]:
    """Runs one of its scripts, which finds its packages beside the other tools."""
    return ["env", f"NODE_PATH={MODULES}", "node", str(FOLDER / script), *arguments]
