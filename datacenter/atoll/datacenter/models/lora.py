"""Low-rank adapters (Hu et al. 2021): a frozen matrix W gets a trained product, ``W x + alpha / rank * B A x``.

B starts at zero, so training starts at the unchanged model. Adapters are parameters of the layer that they adapt. All
other names stay the same, and so do the model's checkpoints, cuts and initial weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.moe import routed_of
from atoll.datacenter.models.spec import Constant, ModelSpec, Normal

if TYPE_CHECKING:
    from atoll.datacenter.job.model import LoraSection, ModelSection
    from atoll.datacenter.models.spec import Foreign

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PARTS = {"lora_a": "lora_A", "lora_b": "lora_B"}
"""Our last name of an adapter's matrix → the name in PEFT."""


class LoraLinear(nn.Linear):
    """A linear layer with an adapter.

    Attributes:
        lora_a: ``[rank, in_features]``.
        lora_b: ``[out_features, rank]``.
        scale: alpha / rank.
    """

    def __init__(self, replaced: nn.Linear, section: LoraSection) -> None:
        super().__init__(replaced.in_features, replaced.out_features, bias=False)
        self.weight, self.bias = replaced.weight, replaced.bias
        self.lora_a = nn.Parameter(torch.zeros(section.rank, replaced.in_features))
        self.lora_b = nn.Parameter(torch.zeros(replaced.out_features, section.rank))
        self.scale = section.alpha / section.rank

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as in nn.Linear
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        low = _settled(functional.linear(input, self.lora_a))
        added = functional.linear(low, self.lora_b) * self.scale
        return functional.linear(input, self.weight, self.bias) + added


def _settled(low: Tensor) -> Tensor:
    """Sum over ranks in the forward pass if the input dim is cut, in the backward pass if the output dim is."""
    return low.redistribute(placements=[Replicate()]) if isinstance(low, DTensor) else low


def with_lora(spec: ModelSpec, section: LoraSection) -> ModelSpec:
    """Return a model with adapters at its named linear layers; everything else is frozen.

    A head with an adapter is no plain projection any more, so the loss is then computed from whole logits.

    Raises:
        LayoutError: when building, if no linear layer has a target's name, or its matrix is another module's too, into
            which an adapter cannot be merged.
    """

    def build() -> nn.Module:
        module = spec.build()
        _adapt(module, section, dict(spec.tied))
        return module

    def initial(name: str, shape: tuple[int, ...]) -> Normal | Constant:
        match name.rpartition(".")[2]:
            case "lora_a":
                return Normal((3 * shape[1]) ** -0.5)  # same standard deviation as PEFT's uniform distribution
            case "lora_b":
                return Constant(0.0)
        return spec.initial(name, shape)

    head = None if spec.head in section.targets else spec.head
    return dataclasses.replace(spec, build=build, initial=initial, trained=is_adapter, head=head)


def is_adapter(name: str) -> bool:
    """Return whether a parameter of this name belongs to an adapter."""
    return name.rpartition(".")[2] in _PARTS


def _adapt(module: nn.Module, section: LoraSection, tied: Mapping[str, str]) -> None:
    routers = {f"{name}.router" for name, _ in routed_of(module)}  # experts read only the weight
    layers = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and name not in routers
    }
    found = {name: layer for name, layer in layers.items() if name.rpartition(".")[2] in section.targets}
    if absent := sorted(set(section.targets) - {name.rpartition(".")[2] for name in found}):
        there = sorted({name.rpartition(".")[2] for name in layers})
        raise LayoutError(f"model.lora.targets: no linear layer is called {', '.join(absent)}; there are {there}")
    others = {**tied, **{second: first for first, second in tied.items()}}
    for name, layer in found.items():
        if (other := others.get(f"{name}.weight")) is not None:
            raise LayoutError(
                f"model.lora.targets: {name}.weight is {other} too (tied embeddings), and an adapter of one of them "
                f"cannot be merged: leave out {name.rpartition('.')[2]}"
            )
        module.set_submodule(name, LoraLinear(layer, section))


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name; for a model with adapters, only those of the adapters."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def merged(
    shapes: Mapping[str, Sequence[int]], whole: Callable[[str], Tensor], section: LoraSection
) -> tuple[dict[str, Sequence[int]], Callable[[str], Tensor]]:
    """Return the model with its adapters merged, in the form that ``save_pretrained`` takes.

    Args:
        shapes: shapes of all parameters by name.
        whole: returns a parameter by name.
        section: ``[model.lora]``.

    Returns:
        The shapes without the adapters', and a function that returns a parameter with its adapter added.
    """

    def added(name: str) -> Tensor:
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_b" not in shapes:
            return whole(name)
        product = whole(f"{layer}.lora_b").float() @ whole(f"{layer}.lora_a").float()
        return whole(name) + product * (section.alpha / section.rank)

    return {name: shape for name, shape in shapes.items() if not is_adapter(name)}, added


@torch.no_grad()
def save_adapters(module: nn.Module, model: ModelSection, foreign: Foreign, folder: Path) -> None:
    """Write only the adapters, in PEFT's format; collective, rank 0 writes.

    Args:
        module: model whose parameters are plain or ``DTensor``.
        model: ``[model]``, with adapters.
        foreign: names of the layers in a Hugging Face checkpoint.
        folder: created if it does not exist.

    Raises:
        LayoutError: if the job has no adapters.
    """
    if model.lora is None:
        raise LayoutError("there are no adapters to save: the job has no [model.lora]")
    ready, targets = {}, set()
    for name, value in trained_parameters(module).items():
        gathered = value.full_tensor() if isinstance(value, DTensor) else value
        layer, _, part = name.rpartition(".")
        (theirs,) = foreign(f"{layer}.weight")
        theirs = theirs.removesuffix(".weight")
        targets.add(theirs.rpartition(".")[2])
        ready[f"base_model.model.{theirs}.{_PARTS[part]}.weight"] = gathered.detach().cpu().contiguous()
    if not dist.is_initialized() or dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(ready, folder / ADAPTER_WEIGHTS, {"format": "pt"})
        (folder / ADAPTER_CONFIG).write_text(json.dumps(_config(model.lora, targets, model.weights), indent=2) + "\n")


def _config(section: LoraSection, targets: set[str], base: str | None) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": section.rank,
        "lora_alpha": section.alpha,
        "target_modules": sorted(targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
