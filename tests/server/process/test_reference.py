from pathlib import Path

import pytest

from atoll.server.config.limits import Limits, Refusal
from atoll.server.process.reference import LIMITS_PAGE, PAGE, limits_page, reference

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_up_to_date() -> None:
    found = (DOCS / PAGE).read_text(encoding="utf-8")
    assert found == reference(), "run: python -m atoll.server.process.reference docs"


def test_the_limits_are_up_to_date() -> None:
    page = (DOCS / LIMITS_PAGE).read_text(encoding="utf-8")
    assert page == limits_page(page), "run: python -m atoll.server.process.reference docs"


@pytest.mark.parametrize("name", Limits.model_fields)
def test_every_limit_says_what_lies_beyond_it(name: str) -> None:
    field = Limits.model_fields[name]
    (refusal,) = [item for item in field.metadata if isinstance(item, Refusal)]
    assert field.description
    assert refusal.happens
    assert refusal.remedy
    assert field.default is not None
