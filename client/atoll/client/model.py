"""The global model: named read-only numpy views over the downloaded blob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.wire.encoding import bfloat16_to_float32
from atoll.wire.layout import Dtype
from atoll.wire.views import tensor_views

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.wire.layout import Layout, TensorSpec

Array = npt.NDArray[Any]


class Model(Mapping[str, Array]):
    """Maps tensor names to read-only arrays in their own shapes, in the layout's order.

    The arrays are views into one buffer (a memory map of the downloaded file). bfloat16 tensors appear as their 16 bits
    (uint16); ``float32(name)`` widens them. Use ``model.copy()`` for arrays to change.
    """

    def __init__(self, layout: Layout, buffer: Buffer) -> None:
        self.layout = layout
        self._views = tensor_views(layout, memoryview(buffer).toreadonly())
        self._specs = {spec.name: spec for spec in layout.tensors}

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"<Model of {len(self)} tensors, {self.layout.size} elements, {self.layout.size_bytes} bytes>"

    def spec(self, name: str) -> TensorSpec:
        """Shape and element type of one tensor."""
        return self._specs[name]

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32: a view if it is float32 already, otherwise a converted copy."""
        return as_float32(self._views[name], self._specs[name].dtype)

    def copy(self) -> dict[str, Array]:
        """Writable copies of all tensors (the memory of one model)."""
        return {name: view.copy() for name, view in self._views.items()}


def as_float32(values: Array, dtype: Dtype) -> npt.NDArray[np.float32]:
    """``values`` of a tensor of element type ``dtype`` as float32; uint16 arrays of bfloat16 tensors are their bits."""
    if dtype is Dtype.BFLOAT16 and values.dtype == np.uint16:
        return bfloat16_to_float32(values.view(np.uint16))
    return values.astype(np.float32, copy=False)
