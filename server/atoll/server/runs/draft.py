"""A model in memory, for a run whose model is changed before it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.wire.layout import Layout


class Draft:
    """A sink that keeps a float64 model in memory.

    Args:
        layout: of the model; float64 tensors only.

    Attributes:
        content: the model's bytes.
        tensors: writable views into them, by name.
    """

    def __init__(self, layout: Layout) -> None:
        flat = np.zeros(layout.size, "<f8")
        self.content = flat.view(np.uint8).data
        self.tensors: dict[str, npt.NDArray[np.float64]] = {
            span.spec.name: flat[span.start : span.stop].reshape(span.spec.shape) for span in layout.spans
        }
        self._at = 0

    def write(self, piece: Buffer, /) -> None:
        """Append bytes."""
        view = memoryview(piece).cast("B")
        self.content[self._at : self._at + view.nbytes] = view
        self._at += view.nbytes
