"""Matrix products in float8 (torchao), on GPUs that support it: Hopper and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.errors import LayoutError, MissingExtraError

if TYPE_CHECKING:
    from atoll.datacenter.models.spec import ModelSpec

_MULTIPLE = 16
"""The kernels take sizes that are multiples of this."""
_CAPABILITY = (8, 9)


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


def use_float8(module: nn.Module, spec: ModelSpec, *, emulate: bool = False) -> None:
    """Make the blocks' linear layers multiply in float8 with tensorwise scaling, in place.

    Args:
        module: model on the meta device, before any cut.
        spec: names the blocks; modules outside them keep their format.
        emulate: compute in float32 instead, for tests without such a GPU.

    Raises:
        MissingExtraError: without torchao.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415  # an optional library
    except ImportError:
        raise MissingExtraError("torchao", "float8", 'precision.compute = "float8"') from None
    config = Float8LinearConfig(emulate=emulate)
    convert_to_float8_training(module.get_submodule(spec.blocks), config=config, module_filter_fn=_fits)


def _fits(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE)
