"""Download the wheels that a GPU machine without a network lacks: ``python packaging/gpu_wheels.py FOLDER``.

Takes the versions of Atoll's requirements for silo training from this environment. GPU images contain PyTorch and its
companions, which must not be replaced; ``--have`` names further packages that they contain. ``make dist`` builds
Atoll's own wheel. On the GPU machine, run ``pip install --no-index --no-deps FOLDER/*.whl``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = frozenset({"silo", "privacy", "float8"})
IN_THE_IMAGE = ("torch", "numpy", "scipy", "protobuf", "grpcio", "safetensors", "rich", "click", "prometheus-client")
_GLIBC_MINORS = (34, 31, 28, 27, 26, 24, 17, 12, 5)
"""Platforms that wheels are built for; pip downloads only wheels for platforms that are named."""


def main() -> int:
    """Download; the exit status is pip's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="the machine's; default: 3.12")
    parser.add_argument(
        "--have", nargs="*", default=[], metavar="NAME", help="further packages that the GPU machine has"
    )
    given = parser.parse_args()
    there = frozenset(canonicalize_name(name) for name in (*IN_THE_IMAGE, *given.have))
    names = sorted(_closure("atoll", EXTRAS, there, set()) - {"atoll"})
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in names]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS] + ["manylinux2014_x86_64"]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", given.python, "--dest", str(given.folder)]
    options += [word for platform in platforms for word in ("--platform", platform)]
    return subprocess.run([sys.executable, "-m", "pip", "download", *options, *pinned], check=False).returncode


def _closure(name: str, extras: frozenset[str], there: frozenset[str], found: set[str]) -> set[str]:
    """Return the package and its requirements, leaving out packages that are there, with all that they require."""
    found.add(name)
    for needed in _needs(name, extras):
        key = canonicalize_name(needed.name)
        if key not in there and key not in found:
            _closure(key, frozenset(needed.extras), there, found)
    return found


def _needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield needed


if __name__ == "__main__":
    sys.exit(main())
