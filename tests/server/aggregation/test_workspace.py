from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.aggregation.workspace import Workspace, decode_into
from atoll.wire.encoding import PLAIN, Encoding, decode, encode


@given(st.integers(1, 10_000), st.sampled_from(PLAIN), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_conversions_are_those_of_the_wire(size: int, encoding: Encoding, shift: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(size) * 1e-3
    result = Workspace(10_000, 1, ()).next_set()
    stored = result.encode(values, encoding)
    assert stored.tobytes() == encode(values, encoding).tobytes()
    out = np.empty(size)
    decode_into(out, memoryview(bytes(shift) + stored.tobytes())[shift:], encoding)
    assert np.array_equal(out, decode(stored.tobytes(), encoding))


@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.FLOAT16, Encoding.BFLOAT16])
def test_what_is_too_large_becomes_infinite(encoding: Encoding) -> None:
    result = Workspace(2, 1, ()).next_set()
    assert decode(result.encode(np.array([1e39, -1e39]), encoding).tobytes(), encoding).tolist() == [np.inf, -np.inf]


def test_sets_come_in_turn_and_do_not_share_memory() -> None:
    work = Workspace(10, 3, ("momentum",))
    sets = [work.next_set() for _ in range(4)]
    assert sets[3] is sets[0]
    for index, one in enumerate(sets[:3]):
        one.state(10)["momentum"][:] = index
        one.encode(np.full(10, float(index)), Encoding.FLOAT64)
    assert [one.state(1)["momentum"].tolist() for one in sets[:3]] == [[0.0], [1.0], [2.0]]
