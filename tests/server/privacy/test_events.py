import math

import pytest

from atoll.server.privacy import Event, Sampling


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"noise_multiplier": 1.0, "sample_rate": 0.0, "sampling": Sampling.POISSON}, "sample_rate = 0.0"),
        ({"noise_multiplier": 1.0, "sample_rate": math.nan, "sampling": Sampling.POISSON}, "sample_rate = nan"),
        ({"noise_multiplier": 1.0, "sample_rate": 1.5, "sampling": Sampling.POISSON}, "sample_rate = 1.5"),
        ({"noise_multiplier": 1.0, "sample_rate": 0.5}, "must be 1 where no sampling is counted"),
        ({"noise_multiplier": 1.0, "count": -1}, "count = -1"),
    ],
)
def test_impossible_events_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Event(**settings)  # type: ignore[arg-type]  # the point of the test


def test_no_release_and_infinite_noise_are_free() -> None:
    assert Event(1.0, count=0).is_free
    assert Event(math.inf).is_free
    assert not Event(0.0).is_free
