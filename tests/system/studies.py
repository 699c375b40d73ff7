"""New studies, and the commands in their READMEs, run unchanged."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.patience import WAIT_S

BIN = Path(sys.executable).parent


def shell(script: str, folder: Path, **more: str) -> str:
    """Run lines of bash in a folder, with this environment's ``atoll`` first on the path; returns their output.

    Jobs that still run at the end are ended as a reader would.

    Raises:
        AssertionError: if a line fails; shows what was printed.
    """
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200", **more}
    whole = f"set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{script}\n"
    running = subprocess.Popen(
        ["/bin/bash", "-c", whole],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = running.communicate(timeout=WAIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert running.returncode == 0, printed
    return printed


@dataclass(frozen=True)
class Page:
    """The commands of a page."""

    text: str

    def blocks(self, heading: str) -> list[str]:
        """The command blocks below a heading, up to the next one of its level or a higher one."""
        level = len(heading) - len(heading.lstrip("#"))
        _, found, rest = self.text.partition(f"\n{heading}")
        assert found, f"no {heading!r}"
        section = re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        return [block for kind, block in fences if not kind]
