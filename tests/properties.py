"""The number of examples of a property test whose examples are costly."""

from __future__ import annotations

import hypothesis

_USUAL = 100
"""Examples of a property with ``--every-case``, unless the test sets another number."""


def examples(every_case: int) -> int:
    """The number of examples now, for a test that has ``every_case`` of them with ``--every-case``."""
    now = hypothesis.settings.default
    assert now is not None, "set when pytest is configured"
    return max(1, every_case * now.max_examples // _USUAL)
