"""Matrix products in float8, emulated in float32: by tensor and by row, gathered in float8, tensor parallel."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.job.training import PrecisionSection
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel import apply
from atoll.datacenter.parallel.apply import cut
from atoll.datacenter.parallel.float8 import check_float8, scale_weights, use_float8
from atoll.datacenter.parallel.initial import fill
from atoll.datacenter.parallel.loss import Loss
from atoll.datacenter.parallel.passes import PlainPasses
from tests.datacenter.checkpoint.going_on import go_on, sections_of
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import method, share, small_in_two, whole
from tests.patience import WAIT_S

MODEL = ModelSection.model_validate({"layers": 1, "dim": 64})
BY_TENSOR, BY_ROW = ({"compute": "float8", "float8_scaling": one} for one in ("tensor", "row"))
GATHERED = {**BY_TENSOR, "float8_gather": True}
SCALINGS = [pytest.param(BY_TENSOR, id="tensor"), pytest.param(BY_ROW, id="row")]


def section(precision: dict[str, Any]) -> PrecisionSection:
    return PrecisionSection.model_validate(precision)


def test_blocks_multiply_in_float8_and_the_rest_does_not() -> None:
    spec = spec_of(MODEL)
    with torch.device("meta"):
        rounded = spec.build()
    use_float8(rounded, spec, section(BY_TENSOR), emulate=True)
    kinds = {name: type(module).__name__ for name, module in rounded.named_modules()}
    assert kinds["blocks.0.attention.wq"] == kinds["blocks.0.feed_forward.w2"] == "Float8Linear"
    assert kinds["output"] == "Linear"


def test_layers_with_an_adapter_keep_it() -> None:
    model = ModelSection.model_validate({"layers": 1, "dim": 64, "lora": {"rank": 4, "targets": ["wq"]}})
    spec = spec_of(model)
    with torch.device("meta"):
        rounded = spec.build()
    use_float8(rounded, spec, section(BY_TENSOR), emulate=True)
    kinds = {name: type(module).__name__ for name, module in rounded.named_modules()}
    assert kinds["blocks.0.attention.wq"] == "LoraLinear"
    assert kinds["blocks.0.attention.wk"] == "Float8Linear"


@pytest.mark.parametrize("precision", SCALINGS)
def test_it_is_near_the_exact_one_and_learns(precision: dict[str, Any]) -> None:
    spec = spec_of(MODEL)
    exact, rounded = spec.build(), spec.build()
    use_float8(rounded, spec, section(precision), emulate=True)
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


def gradients(sections: dict[str, Any], precision: dict[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """Gradients of a step whose blocks multiply in emulated float8 and whose rest computes in float32.

    Returns:
        Gradients, gathered over meshes, and kinds of ``blocks.0.attention.wq``'s weight in the forward pass.
    """
    job, found = SiloJob.model_validate(sections), section(precision)
    kinds: list[str] = []
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), "cpu")
        spec = spec_of(job.model)
        with torch.device("meta"):
            module = spec.build()
        use_float8(module, spec, found, emulate=True)
        cut(module, job, spec, meshes)
        module.to_empty(device="cpu")
        fill(module, spec.initial, job.job.seed)
        layer = module.get_submodule("blocks.0.attention.wq")
        layer.register_forward_hook(lambda layer, _inputs, _output: kinds.append(type(layer.weight).__name__))
        if found.float8_gather:
            scale_weights([module])
        passes = PlainPasses(module, Loss.of(job, spec, meshes), job, world.device)
        batches = share(job, meshes, 0)
        passes(batches, 1.0)
        return {name: whole(value.grad) for name, value in module.named_parameters() if value.grad is not None}, kinds


@pytest.mark.parametrize(
    ("precision", "sections"),
    [
        pytest.param(BY_TENSOR, {"data_parallel": method("zero3")}, id="tensor-zero3"),
        pytest.param(GATHERED, {"data_parallel": method("zero3")}, id="gathered-zero3"),
        pytest.param(BY_TENSOR, {"mesh": {"tp": 2}}, id="tensor-tp"),
        pytest.param(BY_ROW, {"mesh": {"tp": 2}}, id="row-tp", marks=pytest.mark.every_layout),
    ],
)
def test_layouts_have_the_gradients_of_one_process(precision: dict[str, Any], sections: dict[str, Any]) -> None:
    """Sums in another order may move a rounded activation by one step of float8, so norms are compared."""
    model = {
        "model": {"layers": 1, "dim": 64, "heads": 4, "kv_heads": 4, "ffn_dim": 128},
        "batch": {"micro_batch": 2},  # a scale is that of a micro-batch
    }
    alone = {**precision, "float8_gather": False}
    ((wanted, _),) = run_ranks(gradients, 1, small_in_two(1, **model), alone)
    for found, kinds in run_ranks(gradients, 2, small_in_two(2, **model, **sections), precision):
        assert found.keys() == wanted.keys()
        for name, gradient in found.items():
            off = (gradient - wanted[name]).norm() / wanted[name].norm()
            assert off < 5e-3, f"{name}: {off}"
        assert ("Float8TrainingTensor" in kinds) == precision.get("float8_gather", False)


def go_on_emulated(sections: dict[str, Any], folder: str, last: int) -> dict[str, Any]:
    emulated = partial(use_float8, emulate=True)
    with patch.multiple(apply, check_float8=lambda _device: None, use_float8=emulated):
        return go_on(sections, folder, last)


def test_a_checkpoint_of_matrices_gathered_in_float8_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Such a matrix wraps another tensor and has no storage: a copy by its storage reads unrelated memory."""
    sections = sections_of(
        model={"layers": 1, "dim": 64, "heads": 4, "kv_heads": 4, "ffn_dim": 128},
        batch={"micro_batch": 2},
        precision=GATHERED,
        data_parallel=method("zero3"),
    )
    whole_run, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    wanted = run_ranks(go_on_emulated, 2, sections, str(whole_run), 4)[0]
    run_ranks(go_on_emulated, 2, sections, str(interrupted), 2)
    found = run_ranks(go_on_emulated, 2, sections, str(interrupted), 4)[0]
    assert found["resumed"] == 2
    assert found["losses"] == wanted["losses"][2:]
    for name, value in wanted["parameters"].items():
        assert torch.equal(found["parameters"][name], value), name


def test_a_gather_in_float8_needs_one_scale() -> None:
    assert section(GATHERED).float8_gather
    with pytest.raises(ValidationError, match="sends one scale for each matrix"):
        section({**GATHERED, "float8_scaling": "row"})


def test_a_cpu_is_refused() -> None:
    with pytest.raises(LayoutError, match='needs a GPU; this rank computes on cpu: use "bfloat16"'):
        check_float8(torch.device("cpu"))
