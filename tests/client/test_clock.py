from __future__ import annotations

import math

import pytest

from atoll.client._clock import bounded_s


@pytest.mark.parametrize(
    ("told_s", "found_s"),
    [
        (3.0, 3.0),
        (0.0, 0.0),
        (-1.0, 0.0),
        (11.0, 10.0),
        (1e300, 10.0),
        (math.inf, 10.0),
        (-math.inf, 0.0),
        (math.nan, 0.0),
    ],
)
def test_seconds_that_a_server_told_are_bounded(told_s: float, found_s: float) -> None:
    assert bounded_s(told_s, 10.0) == found_s
