from pathlib import Path

from atoll.server.jobs.reference import reference

CHECKED_IN = Path(__file__).parents[3] / "docs" / "job-reference.md"


def test_the_checked_in_reference_is_current() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == reference(), (
        "the models changed: run `python -m atoll.server.jobs.reference docs/job-reference.md`"
    )
