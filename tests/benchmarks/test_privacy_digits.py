from __future__ import annotations

import pytest

from atoll.server.privacy.events import Sampling
from benchmarks.privacy_digits import DELTA, EPSILON, NOT_PRIVATE, WAYS, Way, contract_for

COUNTED = {"poisson": Sampling.POISSON, "least_recent": Sampling.NONE}


@pytest.mark.parametrize("way", [way for way in WAYS if way.name != NOT_PRIVATE], ids=lambda way: way.name)
def test_each_way_is_a_job_that_a_server_would_take_with_the_same_budget(way: Way) -> None:
    contract = contract_for(way, 41, 4)
    counted = COUNTED[way.sampler] if way.mechanism == "gaussian" else Sampling.NONE
    assert (contract.sampling, contract.mechanism, contract.divisor_weight) == (counted, way.mechanism, 20)
    assert contract.delta == DELTA
    assert EPSILON - 0.05 < contract.epsilon_after(4) <= EPSILON
