from pathlib import Path

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.reference import MINIMAL, TYPICAL, reference
from atoll.settings import parse

CHECKED_IN = Path(__file__).parents[3] / "docs" / "silo-job-reference.md"


def test_the_checked_in_reference_is_current() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == reference(), (
        "the sections changed: run `python -m atoll.datacenter.job.reference docs/silo-job-reference.md`"
    )


@pytest.mark.parametrize(("text", "ranks"), [(MINIMAL, 1), (MINIMAL, 8), (TYPICAL, 64)])
def test_the_examples_are_valid_and_fit_their_ranks(text: str, ranks: int) -> None:
    assert check_layout(parse(text, SiloJob, "job.toml"), ranks).world_size == ranks
