"""Matrix products in float8 (torchao), on GPUs that support it: Hopper and later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.errors import LayoutError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.datacenter.job.training import PrecisionSection
    from atoll.datacenter.models.spec import ModelSpec

_MULTIPLE = 16
"""The kernels take sizes that are multiples of this."""
_CAPABILITY = (8, 9)
_RECIPES = {"tensor": "tensorwise", "row": "rowwise"}
"""torchao's names of ``[precision] float8_scaling``."""


def check_float8(device: torch.device) -> None:
    """Refuse a device without float8.

    Raises:
        LayoutError: naming the device.
    """
    if device.type != "cuda":
        raise LayoutError(f'precision.compute = "float8" needs a GPU; this rank computes on {device}: use "bfloat16"')
    if (found := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        raise LayoutError(
            f'precision.compute = "float8" needs compute capability 8.9 (Hopper, Ada); '
            f'{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}: use "bfloat16"'
        )


def use_float8(module: nn.Module, spec: ModelSpec, section: PrecisionSection, *, emulate: bool = False) -> None:
    """Make the blocks' linear layers multiply in float8, in place. Layers with an adapter keep their format.

    With tensor parallelism each rank scales its part; what is gathered along the sequence is sent in bfloat16.

    Args:
        module: model on the meta device, before any cut.
        spec: names the blocks; modules outside them keep their format.
        section: the job's ``[precision]``.
        emulate: compute in float32 instead, for tests without such a GPU.

    Raises:
        MissingExtraError: without torchao.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415  # an optional library
    except ImportError:
        raise MissingExtraError("torchao", "float8", 'precision.compute = "float8"') from None
    config = replace(
        Float8LinearConfig.from_recipe_name(_RECIPES[section.float8_scaling]),
        emulate=emulate,
        enable_fsdp_float8_all_gather=section.float8_gather,
    )
    convert_to_float8_training(module.get_submodule(spec.blocks), config=config, module_filter_fn=_fits)


def scale_weights(parts: Iterable[nn.Module]) -> None:
    """Compute the scales of all matrices that FSDP gathers in float8, in one sum over ranks; collective.

    Call it after weights change and before they are gathered: an outdated scale cuts off large weights.
    """
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp  # noqa: PLC0415  # an optional library

    for part in parts:
        precompute_float8_dynamic_scale_for_fsdp(part)


def _fits(module: nn.Module, _name: str) -> bool:
    return type(module) is nn.Linear and not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE)
