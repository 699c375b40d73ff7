from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.digest import MIN_CHUNK_BYTES, BlobManifest
from atoll.wire.errors import DigestError, LayoutError, WireError
from atoll.wire.layout import MAX_DIMENSIONS, MAX_TENSORS, Layout
from atoll.wire.messages import (
    SettingValue,
    layout_from_proto,
    layout_to_proto,
    manifest_from_proto,
    manifest_to_proto,
    settings_from_proto,
    settings_to_proto,
)
from atoll.wire.v1 import participation_pb2, tensors_pb2
from tests.wire.strategies import layouts, names

values = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)


@given(layouts)
def test_layouts_survive_protobuf(layout: Layout) -> None:
    assert layout_from_proto(tensors_pb2.Layout.FromString(layout_to_proto(layout).SerializeToString())) == layout


@given(st.binary(max_size=3 * MIN_CHUNK_BYTES))
def test_manifests_survive_protobuf(blob: bytes) -> None:
    manifest = BlobManifest.of_buffer(blob, MIN_CHUNK_BYTES)
    message = tensors_pb2.BlobManifest.FromString(manifest_to_proto(manifest).SerializeToString())
    assert manifest_from_proto(message) == manifest


@given(st.dictionaries(names, values, max_size=5))
def test_settings_survive_protobuf_with_their_types(settings: dict[str, SettingValue]) -> None:
    message = participation_pb2.Participate(settings=settings_to_proto(settings))
    parsed = participation_pb2.Participate.FromString(message.SerializeToString())
    back = settings_from_proto(parsed.settings)
    assert back == settings
    assert {name: type(value) for name, value in back.items()} == {n: type(v) for n, v in settings.items()}


def test_refuses_a_type_of_element_that_is_not_known() -> None:
    message = tensors_pb2.Layout(tensors=[tensors_pb2.TensorSpec(name="w", shape=[1])])
    with pytest.raises(LayoutError, match="'w': element type 0 is not known; known are float32"):
        layout_from_proto(message)


def test_refuses_a_setting_of_a_newer_type() -> None:
    message = participation_pb2.Participate()
    message.settings["new"].SetInParent()
    with pytest.raises(WireError, match="'new'"):
        settings_from_proto(message.settings)


def test_refuses_digests_that_are_cut() -> None:
    with pytest.raises(DigestError, match="33 bytes"):
        manifest_from_proto(tensors_pb2.BlobManifest(size_bytes=1, chunk_bytes=1024, chunk_digests=bytes(33)))


def test_a_layout_is_counted_before_values_are_made_of_it() -> None:
    many = tensors_pb2.Layout(tensors=[tensors_pb2.TensorSpec(name="w")] * (MAX_TENSORS + 1))
    with pytest.raises(LayoutError, match=f"not {MAX_TENSORS + 1}"):
        layout_from_proto(many)
    deep = tensors_pb2.TensorSpec(name="w", shape=[1] * (MAX_DIMENSIONS + 1), dtype=tensors_pb2.DTYPE_FLOAT32)
    with pytest.raises(LayoutError, match=f"{MAX_DIMENSIONS + 1} dimensions"):
        layout_from_proto(tensors_pb2.Layout(tensors=[deep]))
