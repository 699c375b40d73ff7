"""The first model: arrays, or a safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.formats import safetensors
from atoll.simulation.errors import SetupError
from atoll.wire.errors import WireError
from atoll.wire.layout import Dtype, Layout, TensorSpec

InitialModel = Mapping[str, npt.NDArray[Any]] | str | Path
_DTYPES = {"float32": Dtype.FLOAT32, "float64": Dtype.FLOAT64, "float16": Dtype.FLOAT16, "uint16": Dtype.BFLOAT16}
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class Initial:
    """A model's layout and bytes."""

    layout: Layout
    arrays: tuple[npt.NDArray[Any], ...] = ()
    path: Path | None = None
    first_byte: int = 0

    def pieces(self) -> Iterator[memoryview]:
        """The model's bytes, in order."""
        if self.path is None:
            yield from (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in self.arrays)
            return
        with self.path.open("rb") as file:
            file.seek(self.first_byte)
            while piece := file.read(_PIECE_BYTES):
                yield memoryview(piece)


def initial_model(given: InitialModel) -> Initial:
    """A model from arrays by name (torch tensors on the CPU too), or from a file.

    Raises:
        SetupError: naming the tensor or file, and what is allowed.
    """
    try:
        if isinstance(given, str | Path):
            layout, start = safetensors.read_header(Path(given))
            return Initial(layout, path=Path(given), first_byte=start)
        arrays = {name: _little_endian(np.asarray(array)) for name, array in given.items()}
        return Initial(Layout(tuple(_spec(name, array) for name, array in arrays.items())), tuple(arrays.values()))
    except (WireError, OSError) as error:
        raise SetupError(f"initial: {error}") from error


def _little_endian(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def _spec(name: str, array: npt.NDArray[Any]) -> TensorSpec:
    dtype = _DTYPES.get(array.dtype.name)
    if dtype is None:
        raise SetupError(f"initial[{name!r}] has element type {array.dtype}; allowed are {', '.join(_DTYPES)}")
    return TensorSpec(name, array.shape, dtype)
