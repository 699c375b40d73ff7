from __future__ import annotations

import math

import pytest
from blake3 import blake3
from hypothesis import given

from atoll.wire.errors import LayoutError
from atoll.wire.layout import MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS, Dtype, Layout, TensorSpec
from tests.wire.strategies import layouts


def spec(name: str = "w", shape: tuple[int, ...] = (2, 3), dtype: Dtype = Dtype.FLOAT32) -> TensorSpec:
    return TensorSpec(name, shape, dtype)


@given(layouts)
def test_spans_tile_the_element_and_byte_spaces(layout: Layout) -> None:
    element = byte = 0
    for span, tensor in zip(layout.spans, layout.tensors, strict=True):
        assert span.spec == tensor
        assert (span.start, span.byte_start) == (element, byte)
        assert span.stop - span.start == math.prod(tensor.shape) == tensor.size
        assert span.byte_stop - span.byte_start == tensor.size * tensor.dtype.itemsize
        element, byte = span.stop, span.byte_stop
    assert (layout.size, layout.size_bytes) == (element, byte)


@given(layouts, layouts)
def test_digest_tells_layouts_apart(one: Layout, other: Layout) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_digest_depends_on_order_and_borders() -> None:
    a, b = spec("a"), spec("b")
    assert Layout((a, b)).digest != Layout((b, a)).digest
    assert Layout((spec("a", (1, 2)),)).digest != Layout((spec("a", (12,)),)).digest


def test_digest_is_fixed_for_ever() -> None:
    """The canonical text is "<bytes of the name> <name> <type> <sides>", one line a tensor; docs/protocol.md."""
    layout = Layout((spec("w", (2, 3)), spec("ö", (), Dtype.BFLOAT16)))
    assert layout.digest == blake3("atoll layout 1\n1 w float32 2,3\n2 ö bfloat16 ".encode()).hexdigest()
    assert layout.digest == "e6e52515f9b648bd07b0034fb6a32249f02041314af94fa5d3a68c348dd76774"


def test_a_scalar_has_one_element() -> None:
    assert spec(shape=()).size == 1


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_BYTES + 1), "é" * (MAX_NAME_BYTES // 2 + 1), "a\x00b"])
def test_refuses_names(name: str) -> None:
    with pytest.raises(LayoutError, match="name"):
        spec(name)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0,), "dimension below 1"),
        ((2, -1), "dimension below 1"),
        ((1,) * (MAX_DIMENSIONS + 1), "dimensions"),
        ((2**25, 2**25), "2\\^48"),
    ],
)
def test_refuses_shapes(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        spec(shape=shape)


def test_refuses_layouts() -> None:
    with pytest.raises(LayoutError, match="not 0"):
        Layout(())
    with pytest.raises(LayoutError, match="occurs twice"):
        Layout((spec(), spec()))
    with pytest.raises(LayoutError, match=str(MAX_TENSORS)):
        Layout(tuple(spec(str(number), (1,)) for number in range(MAX_TENSORS + 1)))
    with pytest.raises(LayoutError, match="at most 2\\^48"):
        Layout(tuple(spec(str(number), (2**47,)) for number in range(3)))
