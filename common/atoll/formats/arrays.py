"""A model as named arrays: its layout, its bytes, and its safetensors file.

::

    save("initial.safetensors", {"weight": np.zeros((64, 10), np.float32)})
    weight = load("model.safetensors")["weight"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from atoll.formats import safetensors
from atoll.wire.errors import LayoutError
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.views import tensor_views

DTYPES = {dtype.value: dtype for dtype in Dtype} | {"uint16": Dtype.BFLOAT16}
"""Element types by numpy's name. ``bfloat16`` is the type of the library ml_dtypes, which JAX uses; ``uint16`` holds
the bits of bfloat16, as in downloaded models."""


@dataclass(frozen=True)
class NamedArrays:
    """A model in arrays.

    Attributes:
        layout: names, shapes and element types, in the order of the mapping.
        arrays: the arrays, little-endian, in the same order; arrays that already have this form are not copied.
    """

    layout: Layout
    arrays: tuple[npt.NDArray[Any], ...]

    @classmethod
    def of(cls, given: Mapping[str, npt.ArrayLike]) -> Self:
        """A model from arrays by name (PyTorch tensors on the CPU too), of a type in ``DTYPES`` and either byte order.

        Raises:
            LayoutError: naming the array: its element type is not supported, or it has no elements.
        """
        arrays = {name: _array(name, value) for name, value in given.items()}
        return cls(Layout(tuple(_spec(name, array) for name, array in arrays.items())), tuple(arrays.values()))

    def pieces(self) -> Iterator[memoryview]:
        """The model's bytes in order, one piece for each array; copies an array that is not contiguous."""
        return (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in self.arrays)


def _array(name: object, value: npt.ArrayLike) -> npt.NDArray[Any]:
    if not isinstance(name, str):
        raise LayoutError(f"the name {name!r} of an array is not a string")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # PyTorch's, for a tensor that numpy cannot view
        raise LayoutError(f"{name!r} cannot be read as an array: {error}") from error
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def _spec(name: str, array: npt.NDArray[Any]) -> TensorSpec:
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None:
        raise LayoutError(
            f"array {name!r} has element type {array.dtype}; allowed are {', '.join(DTYPES)} (uint16: the bits of "
            "bfloat16): convert it, for example with .astype('float32'), or leave it out"
        )
    return TensorSpec(name, array.shape, dtype)


def save(path: str | Path, arrays: Mapping[str, npt.ArrayLike]) -> None:
    """Write arrays as a safetensors file, for example the initial model of a job; replaces a file of that name.

    Args:
        path: of the file.
        arrays: by name, with an element type of ``DTYPES``; uint16 for the bits of bfloat16.

    Raises:
        LayoutError: naming the array: its element type is not supported, or it has no elements.
        OSError: if the file cannot be written.
    """
    found = NamedArrays.of(arrays)
    safetensors.write(Path(path), found.layout, found.pieces())


def load(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a safetensors file, all in memory and read-only; bfloat16 as its bits, uint16.

    Raises:
        SafetensorsError: if the file cannot be read, is damaged, or has tensors of unsupported types (integers).
    """
    layout, start = safetensors.read_header(Path(path))
    return dict(tensor_views(layout, memoryview(Path(path).read_bytes())[start:]))
