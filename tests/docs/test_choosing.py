"""docs/choosing-a-model.md: each section of a job file on it is valid."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from atoll.client import Evaluation
from atoll.server.jobs import parse_job
from tests.docs.commands import ROOT

PAGE = (ROOT / "docs" / "choosing-a-model.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
JOB = """
[job]
name = "page"
rounds = 100
[cohort]
size = 3
"""


@pytest.mark.parametrize("section", SECTIONS)
def test_a_job_with_the_section_is_valid(section: str) -> None:
    assert parse_job(JOB + section).best is not None


def test_the_page_has_sections() -> None:
    assert len(SECTIONS) >= 2


def test_the_python_of_the_page_runs() -> None:
    found: dict[str, Any] = {}
    for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(snippet, found)  # noqa: S102  # the page is ours
    assert found["evaluate"]({"w": np.array([3.0, 4.0])}) == {"norm": 5.0}
    assert isinstance(found["evaluation"], Evaluation)
    assert found["evaluation"].scores["auc"].auc == 1.0
