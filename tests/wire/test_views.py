from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from atoll.wire.errors import LayoutError
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.views import tensor_views
from tests.wire.strategies import layouts


@given(layouts)
def test_views_show_the_bytes_where_they_are(layout: Layout) -> None:
    buffer = bytearray(index % 251 for index in range(layout.size_bytes))
    views = tensor_views(layout, buffer)
    assert list(views) == [spec.name for spec in layout.tensors]
    for span in layout.spans:
        view = views[span.spec.name]
        assert view.shape == span.spec.shape
        assert view.dtype == np.dtype(span.spec.dtype.storage)
        assert view.tobytes() == bytes(buffer[span.byte_start : span.byte_stop])
        assert np.shares_memory(view, np.frombuffer(buffer, np.uint8))


def test_views_are_writable_only_if_the_buffer_is() -> None:
    layout = Layout((TensorSpec("w", (2,), Dtype.FLOAT32),))
    buffer = bytearray(8)
    tensor_views(layout, buffer)["w"][0] = 1.0
    assert np.frombuffer(buffer, np.float32)[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        tensor_views(layout, bytes(8))["w"][0] = 1.0


def test_refuses_another_length() -> None:
    layout = Layout((TensorSpec("w", (2,), Dtype.FLOAT32),))
    with pytest.raises(LayoutError, match="7 bytes for a layout of 8 bytes"):
        tensor_views(layout, bytes(7))
