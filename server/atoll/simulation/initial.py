"""The first model: arrays, or a safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt

from atoll.formats import safetensors
from atoll.formats.arrays import NamedArrays
from atoll.simulation.errors import SetupError
from atoll.wire.errors import WireError
from atoll.wire.layout import Layout

InitialModel = Mapping[str, npt.ArrayLike] | str | Path
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class InitialFile:
    """A model in a safetensors file.

    Attributes:
        layout: its tensors, in the order of their bytes.
        path: the file.
        first_byte: where the tensors begin.
    """

    layout: Layout
    path: Path
    first_byte: int

    def pieces(self) -> Iterator[memoryview]:
        """The model's bytes, in order."""
        with self.path.open("rb") as file:
            file.seek(self.first_byte)
            while piece := file.read(_PIECE_BYTES):
                yield memoryview(piece)


Initial = NamedArrays | InitialFile
"""A model's layout and bytes."""


def initial_model(given: InitialModel) -> Initial:
    """A model from arrays by name (torch tensors on the CPU too), or from a file.

    Raises:
        SetupError: naming the tensor or file, and what is allowed.
    """
    try:
        if isinstance(given, Mapping):
            return NamedArrays.of(given)
        path = Path(given)
        if not path.is_file():
            raise SetupError(
                f"initial: there is no file {path}; write the first model with atoll.formats.arrays.save, or name "
                "another file in [model] initial"
            )
        layout, start = safetensors.read_header(path)
    except (WireError, OSError) as error:
        raise SetupError(f"initial: {error}") from error
    return InitialFile(layout, path, start)
