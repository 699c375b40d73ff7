"""The tensor layout: an ordered list of tensors over one flat element index space [0, N).

Everything on the wire addresses elements of that space. So a transfer resumes at any element, no message limits the
size of a model, and participants with different shardings agree on every element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from blake3 import blake3

from atoll.wire.errors import LayoutError

MAX_TENSORS = 65_536
MAX_NAME_BYTES = 512
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 2**48


class Dtype(StrEnum):
    """Element type of a tensor at rest. Integer tensors are not sent."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def storage(self) -> str:
        """The numpy dtype string that holds it, little-endian; bfloat16 is held as its 16 bits (``<u2``)."""
        return _STORAGE[self]


_ITEMSIZE = {Dtype.FLOAT32: 4, Dtype.FLOAT64: 8, Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2}
_STORAGE = {Dtype.FLOAT32: "<f4", Dtype.FLOAT64: "<f8", Dtype.FLOAT16: "<f2", Dtype.BFLOAT16: "<u2"}


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of one tensor.

    Raises:
        LayoutError: for an empty or over-long name, a non-positive dimension, or too many dimensions.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype

    def __post_init__(self) -> None:
        encoded = len(self.name.encode("utf-8", "surrogatepass"))
        if not 0 < encoded <= MAX_NAME_BYTES or "\x00" in self.name:
            raise LayoutError(f"tensor name {self.name[:80]!r}: needs 1 to {MAX_NAME_BYTES} bytes of text, no NUL")
        if len(self.shape) > MAX_DIMENSIONS:
            raise LayoutError(f"tensor {self.name!r}: {len(self.shape)} dimensions, at most {MAX_DIMENSIONS}")
        if any(side <= 0 for side in self.shape):
            raise LayoutError(f"tensor {self.name!r}: shape {list(self.shape)} has a dimension below 1; leave it out")
        if math.prod(self.shape) > MAX_ELEMENTS:
            raise LayoutError(f"tensor {self.name!r}: shape {list(self.shape)} has over 2^48 elements")

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar (shape ``()``)."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorSpan:
    """A tensor's place: elements [start, stop) and bytes [byte_start, byte_stop) of the blob."""

    spec: TensorSpec
    start: int
    stop: int
    byte_start: int
    byte_stop: int


@dataclass(frozen=True)
class Layout:
    """The ordered tensors of a model.

    Raises:
        LayoutError: for no tensors, too many, or a name that occurs twice.
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.tensors) <= MAX_TENSORS:
            raise LayoutError(f"a layout has 1 to {MAX_TENSORS} tensors, not {len(self.tensors)}")
        seen: set[str] = set()
        for spec in self.tensors:
            if spec.name in seen:
                raise LayoutError(f"tensor name {spec.name!r} occurs twice in the layout")
            seen.add(spec.name)
        if self.size > MAX_ELEMENTS:
            raise LayoutError(f"the layout has {self.size} elements, at most 2^48")

    @cached_property
    def size(self) -> int:
        """Number of elements of all tensors together: N."""
        return sum(spec.size for spec in self.tensors)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the blob that holds the tensors, one after another."""
        return sum(spec.size * spec.dtype.itemsize for spec in self.tensors)

    @cached_property
    def spans(self) -> tuple[TensorSpan, ...]:
        """The tensors with their element and byte ranges, in order."""
        spans = []
        start = byte_start = 0
        for spec in self.tensors:
            stop = start + spec.size
            byte_stop = byte_start + spec.size * spec.dtype.itemsize
            spans.append(TensorSpan(spec, start, stop, byte_start, byte_stop))
            start, byte_start = stop, byte_stop
        return tuple(spans)

    @cached_property
    def digest(self) -> str:
        """Hex BLAKE3 of the canonical text of the layout (docs/protocol.md, "Digests")."""
        lines = [f"{len(s.name.encode())} {s.name} {s.dtype.value} {','.join(map(str, s.shape))}" for s in self.tensors]
        return blake3("\n".join(["atoll layout 1", *lines]).encode()).hexdigest()
