"""Adapters: equal in every layout, beside a frozen model, and readable by PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.huggingface import completed
from atoll.datacenter.job.model import LoraSection, ModelSection
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.huggingface import save_model
from atoll.datacenter.models.huggingface.read import load_weights
from atoll.datacenter.models.lora import is_adapter, save_adapters, trained_parameters
from atoll.datacenter.parallel.initial import fill
from atoll.datacenter.train.build import make_step
from tests.datacenter.models.layouts import SHARDED_AND_CUT
from tests.datacenter.models.test_huggingface import reference
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import Example, assert_same, small_in_two, train
from tests.patience import WAIT_S

LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0, "targets": ["wq", "wv", "wo", "w1", "w2"]}


def adapted(ranks: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """Learning rate and epsilon are ten times those of the small job: AdamW amplifies rounding by their ratio."""
    return small_in_two(ranks, model={"lora": LORA}, optimiser={"lr": 1e-2, "epsilon": 1e-5}, **sections)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, adapted(1))[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        *SHARDED_AND_CUT,
        pytest.param(
            4,
            {"mesh": {"tp": 2}, "data_parallel": {"method": "zero2"}},
            id="zero2-2-tp-2",
            marks=pytest.mark.every_layout,
        ),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    for found in run_ranks(train, ranks, adapted(ranks, **sections)):
        assert_same(found, alone)


def test_only_adapters_move(alone: dict[str, Any]) -> None:
    start: dict[str, Any] = run_ranks(train, 1, adapted(1), 0)[0]
    for name, value in alone["parameters"].items():
        assert torch.equal(value, start["parameters"][name]) is not is_adapter(name), name


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [pytest.param(1, {}, id="one"), pytest.param(2, {"tp": 2}, id="tp-2", marks=pytest.mark.every_layout)],
)
def test_an_adapter_of_the_output_learns_although_chunks_of_the_loss_were_asked_for(
    ranks: int, mesh: dict[str, int]
) -> None:
    """Chunks take the matrix alone, so logits are computed whole; ``check_layout`` refuses to say both."""
    model = {"lora": LORA | {"targets": ["wq", "output"]}}
    (wanted,) = run_ranks(train, 1, small_in_two(1, model=model))
    assert wanted["parameters"]["output.lora_b"].any()
    in_chunks = small_in_two(ranks, model=model, memory={"loss_chunk_tokens": 8}, mesh=mesh)
    for found in run_ranks(train, ranks, in_chunks):
        assert_same(found, wanted)
    with pytest.raises(LayoutError, match="its head has an adapter"):
        check_layout(SiloJob.model_validate(in_chunks), ranks)


def states(sections: dict[str, Any]) -> dict[str, int]:
    """Elements of optimiser states on this rank, and of what is trained."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device)
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        step(0, [Example(tokens, tokens)])
        moments = [entry["exp_avg"] for entry in step.optimiser.state.values()]
        (part,) = step.passes.parts
        assert all((value.grad is None) for value in part.parameters())
        return {
            "moments": sum(moment.to_local().numel() for moment in moments),
            "trained": sum(value.numel() for value in trained_parameters(part).values()),
            "all": sum(value.numel() for value in part.parameters()),
        }


def test_optimiser_states_are_of_adapters_alone_and_sharded() -> None:
    both = run_ranks(states, 2, adapted(2, data_parallel={"method": "zero3"}))
    assert sum(one["moments"] for one in both) == both[0]["trained"] < both[0]["all"]
    assert both[0]["trained"] == sum(2 * 4 * sizes for sizes in (32 + 32, 32 + 16, 32 + 32, 32 + 64, 64 + 32))


def random_module(model: ModelSection, folder: Path) -> nn.Module:
    """The checkpoint's model with non-zero adapters."""
    spec = spec_of(model)
    module = spec.build()
    assert spec.foreign is not None
    fill(module, spec.initial, 1, but=load_weights(module, spec.foreign, folder))
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith("lora_b"):
                value.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    for name, value in module.named_parameters():
        value.requires_grad_(is_adapter(name))
    return module


def test_peft_reads_the_adapters_and_transformers_the_merged_model(tmp_path: Path) -> None:
    from peft import PeftModel  # noqa: PLC0415  # slow to import
    from transformers import LlamaForCausalLM  # noqa: PLC0415

    base = reference(tmp_path / "base")
    model = ModelSection.model_validate({**completed({}, tmp_path / "base"), "lora": LORA})
    spec = spec_of(model)
    module = random_module(model, tmp_path / "base")
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(5))
    assert spec.foreign is not None
    save_adapters(module, model, spec.foreign, tmp_path / "adapters")
    save_model([module], spec, model, tmp_path / "merged")
    with torch.no_grad():
        wanted: Tensor = module(tokens)
        plain = base(tokens).logits
        merged: Any = LlamaForCausalLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(merged.eval()(tokens).logits, wanted, rtol=1e-4, atol=1e-4)
        theirs: Any = PeftModel.from_pretrained(base, str(tmp_path / "adapters"))
        torch.testing.assert_close(theirs.eval()(tokens).logits, wanted, rtol=1e-4, atol=1e-4)
        assert (plain - wanted).abs().max() > 0.1


def test_a_fresh_adapter_changes_nothing() -> None:
    plain = ModelSection.model_validate({"vocab": 64, "layers": 1, "dim": 32, "heads": 4})
    with_adapters = plain.model_copy(update={"lora": LoraSection.model_validate(LORA)})
    tokens = torch.arange(16).reshape(1, 16)
    logits = []
    for model in (plain, with_adapters):
        spec = spec_of(model)
        module = spec.build()
        fill(module, spec.initial, 7)
        logits.append(module(tokens))
    assert torch.equal(logits[0], logits[1])


def test_a_router_takes_no_adapter() -> None:
    """Its weight is read by the experts, so that an adapter beside it would do nothing."""
    model = {"moe": {"experts": 4, "expert_dim": 32, "shared_experts": 1}, "lora": {"targets": ["wq", "router"]}}
    with pytest.raises(LayoutError, match=r"no linear layer is called router; there are \['output', 'w1'"):
        spec_of(ModelSection.model_validate(model)).build()


def test_targets_that_no_layer_has_are_refused() -> None:
    model = ModelSection.model_validate({"lora": {"targets": ["wq", "q_proj"]}})
    with pytest.raises(LayoutError, match=r"no linear layer is called q_proj; there are \['output', 'w1'"):
        spec_of(model).build()
