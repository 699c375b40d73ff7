from __future__ import annotations

import numpy as np

from atoll.simulation.initial import initial_model


def test_arrays_of_the_other_byte_order_keep_their_values() -> None:
    found = initial_model({"w": np.array([1.0, 2.0], ">f4")})
    assert np.array_equal(np.frombuffer(b"".join(found.pieces()), "<f4"), [1.0, 2.0])
