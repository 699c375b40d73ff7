"""Matrix products in float8, emulated in float32."""

from __future__ import annotations

import pytest
import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.float8 import check_float8, use_float8
from atoll.datacenter.parallel.initial import fill

MODEL = ModelSection.model_validate({"layers": 1, "dim": 64})


def test_blocks_multiply_in_float8_and_the_rest_does_not() -> None:
    spec = spec_of(MODEL)
    with torch.device("meta"):
        rounded = spec.build()
    use_float8(rounded, spec, emulate=True)
    kinds = {name: type(module).__name__ for name, module in rounded.named_modules()}
    assert kinds["blocks.0.attention.wq"] == kinds["blocks.0.feed_forward.w2"] == "Float8Linear"
    assert kinds["output"] == "Linear"


def test_it_is_near_the_exact_one_and_learns() -> None:
    spec = spec_of(MODEL)
    exact, rounded = spec.build(), spec.build()
    use_float8(rounded, spec, emulate=True)
    for module in (exact, rounded):
        fill(module, spec.initial, 1)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(2))
    difference = (rounded(tokens) - exact(tokens)).abs().max() / exact(tokens).abs().max()
    assert 1e-4 < difference < 0.1
    for module in (exact, rounded):
        spec.loss(module(tokens), tokens).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    name = "blocks.0.feed_forward.w1.weight"
    gradients = [module.get_parameter(name).grad for module in (exact, rounded)]
    one, other = (gradient.flatten() for gradient in gradients if gradient is not None)
    cosine = torch.cosine_similarity(one, other, dim=0)
    assert cosine > 0.98


def test_a_cpu_is_refused() -> None:
    with pytest.raises(LayoutError, match='needs a GPU; this rank computes on cpu: use "bfloat16"'):
        check_float8(torch.device("cpu"))
