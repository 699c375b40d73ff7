"""A run's report as a file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from atoll.operator.table_files import replacing
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.server.control import RunDetail
    from atoll.statistics import Findings


def write_report(
    detail: RunDetail, elements: int, findings: Findings | None, path: Path, *, now: float | None = None
) -> None:
    """Write the report atomically.

    Args:
        detail: the run with its rounds and their members.
        elements: size of the model.
        findings: the figures of a finished statistics run.
        path: the HTML file.
        now: seconds since the epoch, for the footer; None: the current time.

    Raises:
        BadInputError: if the file cannot be written.
        ImportError: if matplotlib or jinja2 is not installed.
    """
    try:
        from atoll.server.report import render  # noqa: PLC0415 - matplotlib is of another extra, and slow to load
    except ImportError as error:
        raise ImportError(f"a report needs {error.name}: {install_hint('server')}", name=error.name) from error
    page = render(detail, now=time.time() if now is None else now, elements=elements, findings=findings)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
