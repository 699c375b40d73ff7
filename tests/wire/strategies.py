"""Hypothesis strategies for values of the wire contract."""

from __future__ import annotations

from hypothesis import strategies as st

from atoll.wire.chunks import ChunkHeader, ElementRange, UploadKey
from atoll.wire.encoding import PLAIN, Encoding
from atoll.wire.layout import Dtype, Layout, TensorSpec

names = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=20)
shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
specs = st.builds(TensorSpec, names, shapes, st.sampled_from(Dtype))
layouts = st.lists(specs, min_size=1, max_size=8, unique_by=lambda spec: spec.name).map(tuple).map(Layout)
encodings = st.sampled_from(Encoding)
plain_encodings = st.sampled_from(PLAIN)
digests = st.binary(min_size=32, max_size=32)


@st.composite
def element_ranges(draw: st.DrawFn, largest: int = 2**20) -> ElementRange:
    block = draw(st.integers(1, 1000))
    stride = draw(st.integers(block, 2000))
    return ElementRange(draw(st.integers(0, largest)), block, stride, draw(st.integers(1, 50)))


headers = st.builds(ChunkHeader, element_ranges(), encodings, digests)
keys = st.builds(
    UploadKey,
    run=names,
    round=st.integers(0, 2**32 - 1),
    attempt=st.integers(0, 2**32 - 1),
    upload_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    tensor_set=st.sampled_from(["model", "control"]),
)
