"""Compare a federation's model with a job's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.match import check_layout, layout_of, wanted_tensors
from atoll.datacenter.job import SiloJob
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.spec import ModelSpec
from atoll.wire.chunks import ElementRange
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.datacenter.training import small


def spec(**model: Any) -> ModelSpec:
    return spec_of(SiloJob.model_validate(small(model={"layers": 1, **model})).model)


def test_a_jobs_own_layout_is_its_models_parameters_tied_ones_once() -> None:
    names = [one.name for one in layout_of(spec()).tensors]
    assert names[0] == "tok_embeddings.weight"
    assert "output.weight" in names
    tied = [one.name for one in layout_of(spec(tied_embeddings=True)).tensors]
    assert set(names) - set(tied) == {"output.weight"}
    check_layout(layout_of(spec(tied_embeddings=True)), spec(tied_embeddings=True))


def test_the_layout_of_a_job_with_adapters_has_only_the_adapters() -> None:
    lora = spec(lora={"rank": 4})
    names = [one.name for one in layout_of(lora).tensors]
    assert [name.rpartition(".")[2] for name in names] == ["lora_a", "lora_b"] * 2
    check_layout(layout_of(lora), lora)


def test_an_order_of_tensors_of_its_own_is_the_federations_to_choose() -> None:
    check_layout(Layout(tuple(reversed(layout_of(spec()).tensors))), spec())


def test_what_differs_is_named() -> None:
    mine = layout_of(spec()).tensors
    with pytest.raises(LayoutError, match="'odd' is not in this job's model"):
        check_layout(Layout((*mine, TensorSpec("odd", (3,), Dtype.FLOAT32))), spec())
    with pytest.raises(LayoutError, match=f"'{mine[0].name}' is not in the federation's model"):
        check_layout(Layout(mine[1:]), spec())
    with pytest.raises(LayoutError, match=rf"{mine[0].name} is \[1, 2\] there, \[64, 32\] here"):
        check_layout(Layout((replace(mine[0], shape=(1, 2)), *mine[1:])), spec())
    with pytest.raises(LayoutError, match="and 8 more"):
        check_layout(Layout((TensorSpec("odd", (3,), Dtype.FLOAT32),)), spec(layers=1, tied_embeddings=True))


def test_a_round_asks_for_whole_tensors() -> None:
    layout = Layout(tuple(TensorSpec(name, (2, 3), Dtype.FLOAT32) for name in "abc"))
    assert wanted_tensors(layout, ()) == {"a", "b", "c"}
    assert wanted_tensors(layout, (ElementRange.run(6, 12),)) == {"b", "c"}
    assert wanted_tensors(layout, (ElementRange.run(0, 6), ElementRange.run(12, 6))) == {"a", "c"}
    assert wanted_tensors(layout, (ElementRange.run(0, 2), ElementRange.run(2, 4))) == {"a"}
    with pytest.raises(LayoutError, match="a part of tensor 'b'"):
        wanted_tensors(layout, (ElementRange.run(0, 8),))
    with pytest.raises(LayoutError, match="a part of tensor 'a'"):
        wanted_tensors(layout, (ElementRange(0, 2, 3, 2),))
