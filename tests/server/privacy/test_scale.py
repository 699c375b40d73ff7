import pytest

from atoll.server.aggregation.errors import GridError
from atoll.server.aggregation.grid import SUM_BITS
from atoll.server.privacy.scale import LEAST_NOISE, NOISE_BITS, private_grid, sensitivity


@pytest.mark.parametrize("clip", [1e-4, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("noise_weight", [0.3, 1.0, 1e4])
@pytest.mark.parametrize("total", [1, 1600, 10**6])
def test_sum_and_noise_fit_and_rounding_is_nothing_beside_the_clip(
    clip: float, noise_weight: float, total: int
) -> None:
    grid = private_grid(total, 32.0, clip, noise_weight)
    assert (grid.clip, grid.weight_shift, grid.max_total_weight >= total) == (clip, 0, True)
    deviation = noise_weight * sensitivity(grid, 10**9, clip)
    assert 2.0**20 < deviation < 2.0**NOISE_BITS
    assert 13 * deviation + 2.0**SUM_BITS < 2.0**63
    assert sensitivity(grid, 10**9, clip) < 1.1 * clip * grid.scale


def test_noise_that_leaves_no_fraction_is_refused_with_the_numbers() -> None:
    with pytest.raises(GridError, match="noise of 1e\\+13 leave 3 fraction bits"):
        private_grid(10, 32.0, 1e3, 1e10)


def test_noise_of_too_few_units_is_refused_with_value_and_remedy() -> None:
    """Continuous noise is charged: from 2**16 units on, discrete noise costs no more to within rounding."""
    least = LEAST_NOISE / private_grid(1600, 32.0, 1.0, 1.0).scale
    assert private_grid(1600, 32.0, least, 1.0).scale * least == LEAST_NOISE
    with pytest.raises(GridError, match=r"is 6\.554e\+04 units .* at least 65536 are needed") as refused:
        private_grid(1600, 32.0, least * 0.99999, 1.0)
    assert refused.value.detail.remedy == "raise clip or the noise, or lower max_abs or max_weight"
