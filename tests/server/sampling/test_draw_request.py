"""Requests for a draw refuse impossible values."""

from collections.abc import Callable

import pytest

from atoll.server.sampling import DrawRequest, Eligible, History

ONE = (Eligible("pa"),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DrawRequest((*ONE, *ONE), 1, 0, 0), "a participant is listed as eligible twice"),
        (lambda: DrawRequest(ONE, -1, 0, 0), "size = -1: must be 0 or more"),
        (lambda: DrawRequest(ONE, 1, 0, 0, rate=1.5), r"rate = 1\.5: must be a probability"),
        (lambda: DrawRequest(ONE, 1, 0, 0, rate=float("nan")), "rate = nan"),
        (lambda: DrawRequest(ONE, 1, 0, 0, window_s=0.0), r"window_s = 0\.0: must be finite, the window above 0"),
        (lambda: DrawRequest(ONE, 1, 0, 0, at=float("inf")), "at = inf"),
        (lambda: History(online_s=(1.0,)), "online_s has 1 numbers; one for each hour of the day is 24"),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
