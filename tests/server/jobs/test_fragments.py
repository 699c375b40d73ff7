"""Division of a model into fragments (Douillard et al. 2025, arXiv:2501.18512, section 2.2), and valid settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import JobFileError, deal, fragments_of, parse_job
from atoll.server.jobs.reference import MINIMAL
from atoll.wire.chunks import check_coverage
from atoll.wire.layout import Dtype, Layout, TensorSpec


def layout_of(*sizes: int) -> Layout:
    return Layout(tuple(TensorSpec(f"t{i}", (size,), Dtype.FLOAT32) for i, size in enumerate(sizes)))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=80), st.data())
def test_whole_tensors_in_order_and_nearly_equal_shares(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    layout = layout_of(*sizes)
    parts = deal(layout, count).parts
    assert len(parts) == count
    assert all(part.contiguous for part in parts)
    assert [part.offset for part in parts] == sorted(part.offset for part in parts)
    check_coverage(parts, layout.size)  # every element in one of them, and in no second
    borders = {0, *(span.stop for span in layout.spans)}
    assert {edge for part in parts for edge in (part.offset, part.stop)} <= borders
    assert max(part.size for part in parts) <= layout.size / count + max(sizes)
    assert deal(layout, count) == deal(layout, count)


@pytest.mark.parametrize(
    ("sizes", "count", "shares"),
    [
        ((5,), 1, [5]),
        ((10, 10, 10), 3, [10, 10, 10]),
        ((10,) * 12, 4, [30] * 4),
        ((1, 1, 1, 97), 2, [3, 97]),
        ((97, 1, 1, 1), 3, [97, 1, 2]),  # each has a tensor at least
        ((1, 1, 1, 97), 3, [2, 1, 97]),
        ((4, 3, 3, 4), 2, [7, 7]),
        ((6, 2, 2), 2, [6, 4]),
    ],
)
def test_cuts_lie_nearest_to_equal_shares(sizes: tuple[int, ...], count: int, shares: list[int]) -> None:
    found = deal(layout_of(*sizes), count)
    assert [part.size for part in found.parts] == shares
    assert (len(found), found.largest) == (count, max(shares))


def test_train_rounds_take_the_fragments_in_turn() -> None:
    found = deal(layout_of(1, 2, 3), 3)
    assert [found.of_round(version).size for version in range(7)] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize(("count", "tensors"), [(3, 2), (64, 1), (0, 2)])
def test_more_fragments_than_tensors_are_refused(count: int, tensors: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"fragments = {count}: the model has {tensors} tensors") as caught:
        deal(layout_of(*[7] * tensors), count)
    assert caught.value.detail.code == "job.fragments"
    assert caught.value.detail.remedy == f"allowed are 1 to {tensors} for this model"


def test_a_job_says_how_many() -> None:
    spec = parse_job(f"{MINIMAL}\n[aggregation]\nfragments = 2\n")
    assert fragments_of(spec, layout_of(3, 4)) == deal(layout_of(3, 4), 2)
    assert len(fragments_of(parse_job(MINIMAL), layout_of(3, 4))) == 1


@pytest.mark.parametrize("wrong", [0, 65, -1])
def test_so_many_are_out_of_bounds(wrong: int) -> None:
    with pytest.raises(JobFileError, match=r"aggregation\.fragments"):
        parse_job(f"{MINIMAL}\n[aggregation]\nfragments = {wrong}\n")


def test_late_reports_are_not_carried_into_another_fragment_s_round() -> None:
    carry = '\n[straggler]\nlate = "carry"\n'
    parse_job(f"{MINIMAL}{carry}")
    with pytest.raises(JobFileError, match=r"straggler\.late.*does not go with aggregation\.fragments = 2") as caught:
        parse_job(f"{MINIMAL}{carry}[aggregation]\nfragments = 2\n")
    assert 'allowed is "drop"' in str(caught.value)
