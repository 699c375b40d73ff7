"""Figures with their limits: the printed table and the result files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_CPUINFO = Path("/proc/cpuinfo")
_GIT_S = 30.0


@dataclass(frozen=True)
class Figure:
    """A value with the limit or baseline that was measured in the same run.

    Attributes:
        name: of the figure.
        value: the measured value.
        unit: of value and limit.
        limit: the limit or plain baseline; None if there is none.
        ratio: value / limit; None without a limit or if it is 0.
        target: bound on the ratio (``within``; ``equal``: 1), on its distance from 1 (``near``) or on the value
            (``at_most``, ``at_least``); None for a figure without a target.
        ok: whether the target is met; True without a target.
        command: the command that measures this figure.
    """

    name: str
    value: float
    unit: str
    limit: float | None
    ratio: float | None
    target: float | None
    ok: bool
    command: str

    @classmethod
    def stated(cls, name: str, value: float, unit: str, command: str, *, beside: float | None = None) -> Figure:
        """A figure without a target, with the value measured beside it, if any."""
        return cls(name, value, unit, beside, value / beside if beside else None, None, ok=True, command=command)

    @classmethod
    def at_most(
        cls, name: str, value: float, unit: str, most: float, command: str, *, beside: float | None = None
    ) -> Figure:
        """A figure that should not be above ``most``, in its own unit; ``beside`` is a limit of the same run."""
        return cls(name, value, unit, beside, value / beside if beside else None, most, value <= most, command)

    @classmethod
    def at_least(
        cls, name: str, value: float, unit: str, least: float, command: str, *, beside: float | None = None
    ) -> Figure:
        """A figure that should not be below ``least``, in its own unit; ``beside`` as for ``at_most``."""
        return cls(name, value, unit, beside, value / beside if beside else None, least, value >= least, command)

    @classmethod
    def within(cls, name: str, value: float, unit: str, command: str, *, limit: float, target: float) -> Figure:
        """A figure that should be at most ``target`` times a limit measured in the same run."""
        return cls(name, value, unit, limit, value / limit, target, value <= target * limit, command)

    @classmethod
    def near(cls, name: str, value: float, unit: str, command: str, *, other: float, share: float) -> Figure:
        """A figure that should differ from another by at most a share of that."""
        ratio = value / other
        return cls(name, value, unit, other, ratio, share, abs(ratio - 1) <= share, command)

    @classmethod
    def equal(cls, name: str, value: float, unit: str, command: str, *, other: float) -> Figure:
        """A figure that should equal another of the same run."""
        return cls(name, value, unit, other, value / other if other else None, 1.0, value == other, command)


def table(figures: Sequence[Figure]) -> str:
    """The figures as aligned lines."""
    width = max((len(figure.name) for figure in figures), default=0)
    return "\n".join(_line(figure, width) for figure in figures)


def write(name: str, figures: Sequence[Figure], folder: Path = RESULTS) -> None:
    """Keep figures as ``<name>.json``: a list; each entry also carries the machine, the date (UTC) and the commit."""
    about = circumstances()
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps([asdict(figure) | about for figure in figures], indent=1) + "\n")


def circumstances() -> dict[str, str]:
    """Machine, date and commit of a measurement."""
    return {"machine": machine(), "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit()}


@cache
def commit() -> str:
    """The measured commit, with a ``+`` if its files have changed since; empty outside a git repository."""
    changed = (
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!benchmarks/results",
        ":!benchmarks/samples",
    )
    found = _git("rev-parse", "--short=12", "HEAD")
    return f"{found}+" if found and _git(*changed) else found


@cache
def machine() -> str:
    """The machine in a few words: processors and memory."""
    names = [line.partition(":")[2].strip() for line in _lines(_CPUINFO) if line.startswith("model name")]
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores {names[0] if names else platform.machine()}, {memory_gib:.0f} GiB"


def _line(figure: Figure, width: int) -> str:
    beside = "" if figure.limit is None else f"beside {figure.limit:.4g}"
    beside += "" if figure.ratio is None else f": x {figure.ratio:.2f}"
    verdict = "" if figure.target is None else f"target {figure.target:.4g}: {'met' if figure.ok else 'MISSED'}"
    line = f"{figure.name:<{width}} {figure.value:>10.4g} {figure.unit:<10} {beside:<24} {verdict}"
    return line.rstrip()


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(RESULTS.parents[1]), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_GIT_S).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
