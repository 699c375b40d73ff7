"""Random streams that are the same on every machine and in every version."""

import numpy as np

from atoll.server.sampling.streams import raw_stream, unit_interval


def test_a_stream_is_a_function_of_its_name() -> None:
    assert raw_stream("uniform", 7, 1, 2, 3).tolist() == [
        2110508668629187491,
        11673695371078328209,
        6361963112963879644,
    ]


def test_a_longer_stream_begins_with_the_shorter() -> None:
    assert raw_stream("uniform", 7, 1, 2, 100)[:10].tolist() == raw_stream("uniform", 7, 1, 2, 10).tolist()
    assert raw_stream("uniform", 7, 1, 2, 0).size == 0


def test_parts_of_a_name_do_not_run_together() -> None:
    names = [("a", 1, 11, 1), ("a", 11, 1, 1), ("a", 1, 1, 11), ("a1", 1, 1, 1), ("a", 1, 1, 1)]
    assert len({raw_stream(*name, count=1)[0] for name in names}) == len(names)


def test_the_unit_interval_is_half_open_and_uniform() -> None:
    ends = unit_interval(np.array([0, 2**64 - 1], np.uint64))
    assert ends.tolist() == [0.0, 1.0 - 2.0**-53]
    many = unit_interval(raw_stream("uniform", 7, 0, 0, 100_000))
    counts = np.histogram(many, 20, (0, 1))[0]
    chi_square = float(((counts - 5000) ** 2 / 5000).sum())
    assert chi_square < 43.8  # the 0.999 quantile with 19 degrees of freedom
