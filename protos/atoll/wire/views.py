"""Named numpy views over a model's bytes, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.wire.errors import LayoutError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.wire.layout import Layout


def tensor_views(layout: Layout, buffer: Buffer) -> dict[str, npt.NDArray[np.generic]]:
    """Each tensor as a view into ``buffer`` in its own shape; bfloat16 as its 16 bits (uint16).

    Writable if the buffer is.

    Raises:
        LayoutError: if the buffer's length is not that of the layout.
    """
    flat = np.frombuffer(memoryview(buffer), dtype=np.uint8)
    if flat.nbytes != layout.size_bytes:
        raise LayoutError(f"{flat.nbytes} bytes for a layout of {layout.size_bytes} bytes")
    return {
        span.spec.name: flat[span.byte_start : span.byte_stop].view(span.spec.dtype.storage).reshape(span.spec.shape)
        for span in layout.spans
    }


def check_tensors(layout: Layout, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Check that ``tensors`` has exactly the layout's names, in their shapes (element types may differ).

    Raises:
        LayoutError: naming what is missing, unknown or of another shape.
    """
    expected = {spec.name: spec for spec in layout.tensors}
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    if missing or unknown:
        raise LayoutError(f"tensors missing: {missing[:5]}, not in the layout: {unknown[:5]}")
    for name, spec in expected.items():
        if tuple(tensors[name].shape) != spec.shape:
            raise LayoutError(f"tensor {name!r} has shape {list(tensors[name].shape)}, expected {list(spec.shape)}")
