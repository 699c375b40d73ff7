"""Compare the model of a federation with the model of this silo's job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atoll.datacenter.errors import LayoutError
from atoll.wire.layout import Dtype, TensorSpec
from atoll.wire.layout import Layout as WireLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from atoll.datacenter.models.spec import ModelSpec
    from atoll.wire.chunks import ElementRange
    from atoll.wire.layout import Layout

SHOWN = 3


def layout_of(spec: ModelSpec) -> WireLayout:
    """Return the layout of a silo's model in a federation: trained parameters by name, float32, in the model's order.

    Only the first name of tied parameters (``ModelSpec.tied``) counts.
    """
    with torch.device("meta"):
        shapes = _trained(spec, spec.build())
    return WireLayout(tuple(TensorSpec(name, shape, Dtype.FLOAT32) for name, shape in shapes.items()))


def check_layout(layout: Layout, spec: ModelSpec) -> None:
    """Check that each tensor of a layout is in the model with the same shape, and that no trained parameter is missing.

    Raises:
        LayoutError: naming tensors and shapes that differ.
    """
    theirs = {one.name: one.shape for one in layout.tensors}
    with torch.device("meta"):
        module = spec.build()
    everything = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    trained = _trained(spec, module)
    unknown = [name for name in theirs if name not in everything]
    missing = [name for name in trained if name not in theirs]
    other = [
        f"{name} is {list(shape)} there, {list(everything[name])} here"
        for name, shape in theirs.items()
        if name in everything and everything[name] != shape
    ]
    problems = [f"tensor {name!r} is not in this job's model" for name in unknown[:SHOWN]]
    problems += [f"trained parameter {name!r} is not in the federation's model" for name in missing[:SHOWN]]
    problems += other[:SHOWN]
    if problems:
        more = len(unknown) + len(missing) + len(other) - len(problems)
        if more:
            problems.append(f"and {more} more")
        raise LayoutError(*problems)


def _trained(spec: ModelSpec, module: nn.Module) -> dict[str, tuple[int, ...]]:
    again = {second for _, second in spec.tied}
    return {
        name: tuple(parameter.shape)
        for name, parameter in module.named_parameters()
        if name not in again and (spec.trained is None or spec.trained(name))
    }


def wanted_tensors(layout: Layout, ranges: Sequence[ElementRange]) -> frozenset[str]:
    """Return the names of the tensors that a round asks for; all names if ``ranges`` is empty.

    Raises:
        LayoutError: naming a tensor if only a part of it is requested.
    """
    if not ranges:
        return frozenset(span.spec.name for span in layout.spans)
    found = set()
    for span in layout.spans:
        inside = sum(max(0, min(span.stop, one.stop) - max(span.start, one.offset)) for one in ranges)
        if inside not in (0, span.spec.size) or any(not one.contiguous for one in ranges):
            raise LayoutError(f"the server asks for a part of tensor {span.spec.name!r}; whole tensors are needed")
        if inside:
            found.add(span.spec.name)
    return frozenset(found)
