"""Virtual environments of other simulators, installed from the package index."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.options import progress

TORCH = "torch==2.13.0"
PEERS = {"flwr": "flwr[simulation]==1.41.0", "pfl": "pfl==0.6.0"}
"""The packages that pip installs for each, after PyTorch."""
_INSTALL_S = 1200.0


def environment(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is created if missing.

    Raises:
        subprocess.CalledProcessError: if pip cannot install it; pip's output is on standard error.
    """
    home = folder / peer
    python, done = home / "bin" / "python", home / "done"
    if not done.exists():
        progress(f"installing {PEERS[peer]}")
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        for packages in ([TORCH, "numpy"], [TORCH, PEERS[peer]]):
            _run([str(python), "-m", "pip", "install", "--quiet", *packages])
        done.touch()
    return python


def versions(python: Path, *names: str) -> str:
    """The versions of installed packages, such as "flwr 1.20.0, torch 2.13.0"."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([*map(version, sys.argv[1:])]))"
    said = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True, timeout=60.0)
    return ", ".join(f"{name} {version}" for name, version in zip(names, json.loads(said.stdout), strict=True))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_S, stdout=sys.stderr)
