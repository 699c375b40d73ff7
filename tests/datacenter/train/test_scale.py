"""Dynamic loss scaling: down at once, up slowly."""

import pytest

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.scale import GROWTH_STEPS, MIN_SCALE, LossScale


def test_it_halves_when_a_gradient_is_not_finite_and_doubles_after_many_that_are() -> None:
    scale = LossScale(1024.0, dynamic=True)
    scale.update(finite=False)
    assert scale.scale == 512.0
    for _ in range(GROWTH_STEPS - 1):
        scale.update(finite=True)
    assert scale.scale == 512.0
    scale.update(finite=True)
    assert scale.scale == 1024.0


def test_a_bad_step_starts_the_count_anew() -> None:
    scale = LossScale(8.0, dynamic=True, good_steps=GROWTH_STEPS - 1)
    scale.update(finite=False)
    scale.update(finite=True)
    assert scale.scale == 4.0


def test_it_does_not_shrink_for_ever() -> None:
    scale = LossScale(MIN_SCALE, dynamic=True)
    with pytest.raises(TrainingError, match="lower the learning rate"):
        scale.update(finite=False)


def test_formats_that_need_none_keep_it() -> None:
    scale = LossScale(1.0, dynamic=False)
    scale.update(finite=False)
    assert scale.scale == 1.0
