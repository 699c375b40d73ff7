"""Which tensors a job freezes, and the order of the others."""

from __future__ import annotations

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import check_frozen, fragments_of, frozen_tensors, trained_first
from atoll.server.jobs.spec import JobSpec
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.privacy.jobs import job

SIZES = {"embed.table": 50, "body.weight": 30, "embed.scale": 2, "head.weight": 10}
LAYOUT = Layout(tuple(TensorSpec(name, (size,), Dtype.FLOAT32) for name, size in SIZES.items()))


def freezing(*patterns: str, fragments: int = 1) -> JobSpec:
    listed = ", ".join(f'"{pattern}"' for pattern in patterns)
    return job(rest=f'[aggregation]\nweighting = "uniform"\nfragments = {fragments}\nfrozen = [{listed}]')


def test_frozen_tensors_come_last_each_kind_in_the_order_of_the_file() -> None:
    spec = freezing("embed.*")
    assert frozen_tensors(spec, LAYOUT) == {"embed.table", "embed.scale"}
    ordered = trained_first(spec, LAYOUT)
    assert [one.name for one in ordered.tensors] == ["body.weight", "head.weight", "embed.table", "embed.scale"]
    assert trained_first(spec, ordered) == ordered
    assert trained_first(freezing(), LAYOUT) is LAYOUT


def test_rounds_and_fragments_are_over_what_is_trained() -> None:
    ordered = trained_first(freezing("embed.*"), LAYOUT)
    (whole,) = fragments_of(freezing("embed.*"), ordered).parts
    assert (whole.offset, whole.size) == (0, 40)
    halves = fragments_of(freezing("embed.*", fragments=2), ordered).parts
    assert [(part.offset, part.size) for part in halves] == [(0, 30), (30, 10)]
    with pytest.raises(InvalidRequestError, match="the model has 2 tensors"):
        fragments_of(freezing("embed.*", fragments=3), ordered)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (("embed.*", "embeddings.*"), "'embeddings.*', which matches no tensor"),
        (("*",), "matches every tensor of the model"),
        (("embed.*", "*.weight"), "matches every tensor of the model"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused_with_the_tensors(
    patterns: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_frozen(freezing(*patterns), LAYOUT)
    assert refused.value.detail.code == "job.frozen"
    assert words in str(refused.value)
    assert "embed.table, body.weight, embed.scale, head.weight" in f"{refused.value} {refused.value.detail.remedy}"


def test_a_long_model_is_named_in_part() -> None:
    many = Layout(tuple(TensorSpec(f"t{number}", (1,), Dtype.FLOAT32) for number in range(30)))
    with pytest.raises(InvalidRequestError) as refused:
        check_frozen(freezing("x"), many)
    assert "t19 and 10 more" in refused.value.detail.remedy
