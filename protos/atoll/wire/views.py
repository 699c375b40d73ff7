"""Named numpy views over a model's bytes, without a copy."""

from __future__ import annotations

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
