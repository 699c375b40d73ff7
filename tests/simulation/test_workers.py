from __future__ import annotations

from typing import Any

import pytest

from atoll.simulation import SetupError, Workers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, r"workers = -1: give 0, for this process, to 256"),
        ({"count": 257}, r"workers = 257: give 0"),
        ({"count": 2, "gpus": -0.5}, r"Workers\(gpus=-0.5\): give a share from 0 to 1, or a whole number of GPUs"),
        ({"count": 2, "gpus": 1.5}, r"Workers\(gpus=1.5\): give a share"),
        ({"count": 2, "gpus": float("nan")}, r"Workers\(gpus=nan\): give a share"),
        ({"count": 0, "gpus": 0.5}, r"gpus = 0.5 is for worker processes: give workers = 1 or more"),
    ],
)
def test_workers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        Workers(**options)


def test_a_number_is_workers_without_gpus() -> None:
    assert Workers.of(3) == Workers(3) == Workers.of(Workers(3, gpus=0.0))
