"""Conversions between protobuf messages and the frozen values of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.wire.digest import DIGEST_BYTES, BlobManifest
from atoll.wire.errors import DigestError, LayoutError, WireError
from atoll.wire.layout import MAX_DIMENSIONS, MAX_TENSORS, Dtype, Layout, TensorSpec
from atoll.wire.v1 import participation_pb2, tensors_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import MessageMap

PROTOCOL = 1
"""Minor version of the contract; the major one is the ``v1`` of the package."""

SettingValue = bool | int | float | str

_DTYPES: dict[tensors_pb2.Dtype.ValueType, Dtype] = {
    tensors_pb2.DTYPE_FLOAT32: Dtype.FLOAT32,
    tensors_pb2.DTYPE_FLOAT64: Dtype.FLOAT64,
    tensors_pb2.DTYPE_FLOAT16: Dtype.FLOAT16,
    tensors_pb2.DTYPE_BFLOAT16: Dtype.BFLOAT16,
}
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}


def layout_to_proto(layout: Layout) -> tensors_pb2.Layout:
    """The layout as its protobuf message."""
    return tensors_pb2.Layout(
        tensors=[
            tensors_pb2.TensorSpec(name=spec.name, shape=spec.shape, dtype=_DTYPE_NUMBERS[spec.dtype])
            for spec in layout.tensors
        ]
    )


def layout_from_proto(message: tensors_pb2.Layout) -> Layout:
    """The layout of a protobuf message.

    Raises:
        LayoutError: for an invalid layout, or an unknown element type.
    """
    if len(message.tensors) > MAX_TENSORS:  # before any value is made
        raise LayoutError(f"a layout has 1 to {MAX_TENSORS} tensors, not {len(message.tensors)}")
    specs = []
    for tensor in message.tensors:
        if len(tensor.shape) > MAX_DIMENSIONS:
            raise LayoutError(f"tensor {tensor.name!r}: {len(tensor.shape)} dimensions, at most {MAX_DIMENSIONS}")
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            allowed = ", ".join(item.value for item in Dtype)
            raise LayoutError(f"tensor {tensor.name!r}: element type {tensor.dtype} is not known; known are {allowed}")
        specs.append(TensorSpec(tensor.name, tuple(tensor.shape), dtype))
    return Layout(tuple(specs))


def manifest_to_proto(manifest: BlobManifest) -> tensors_pb2.BlobManifest:
    """The manifest as its protobuf message."""
    return tensors_pb2.BlobManifest(
        size_bytes=manifest.size_bytes,
        chunk_bytes=manifest.chunk_bytes,
        chunk_digests=b"".join(manifest.chunk_digests),
    )


def manifest_from_proto(message: tensors_pb2.BlobManifest) -> BlobManifest:
    """The manifest of a protobuf message.

    Raises:
        DigestError: if chunk size, size and digests do not match.
    """
    joined = message.chunk_digests
    if len(joined) % DIGEST_BYTES:
        raise DigestError(f"chunk digests of {len(joined)} bytes are not a multiple of {DIGEST_BYTES}")
    digests = tuple(joined[cut : cut + DIGEST_BYTES] for cut in range(0, len(joined), DIGEST_BYTES))
    return BlobManifest(message.size_bytes, message.chunk_bytes, digests)


def settings_from_proto(message: MessageMap[str, participation_pb2.Setting]) -> dict[str, SettingValue]:
    """Training settings as plain Python values.

    Raises:
        WireError: for a setting without a value that this version knows.
    """
    settings: dict[str, SettingValue] = {}
    for name, setting in message.items():
        match setting.WhichOneof("value"):
            case "number":
                settings[name] = setting.number
            case "integer":
                settings[name] = setting.integer
            case "flag":
                settings[name] = setting.flag
            case "text":
                settings[name] = setting.text
            case None:
                raise WireError(f"setting {name!r} has no value of a known type (number, integer, flag, text)")
    return settings


def setting_to_proto(value: SettingValue) -> participation_pb2.Setting:
    """One setting as its protobuf message."""
    if isinstance(value, bool):
        return participation_pb2.Setting(flag=value)
    if isinstance(value, int):
        return participation_pb2.Setting(integer=value)
    if isinstance(value, float):
        return participation_pb2.Setting(number=value)
    return participation_pb2.Setting(text=value)


def settings_to_proto(settings: Mapping[str, SettingValue]) -> dict[str, participation_pb2.Setting]:
    """Training settings as protobuf messages."""
    return {name: setting_to_proto(value) for name, value in settings.items()}
