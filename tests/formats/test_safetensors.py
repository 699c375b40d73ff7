"""Model files, against the reference implementation (the safetensors package)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.formats.safetensors import read_header, write
from atoll.wire.errors import SafetensorsError
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.views import tensor_views

TENSORS: dict[str, npt.NDArray[Any]] = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "ünïcode": np.array(1.5, dtype=np.float64),
    "half": np.ones((3,), dtype=np.float16),
}


def raw(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path, metadata={"made": "here"})
    layout, start = read_header(path)
    views = tensor_views(layout, path.read_bytes()[start:])
    assert set(views) == set(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(views[name], array)


def test_the_reference_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    layout = Layout(tuple(TensorSpec(name, a.shape, Dtype(a.dtype.name)) for name, a in TENSORS.items()))
    write(path, layout, [a.tobytes() for a in TENSORS.values()], {"run": "r1"})
    assert path.stat().st_size % 2 == 0
    assert read_header(path)[0] == layout
    for name, array in safetensors.numpy.load_file(path).items():
        np.testing.assert_array_equal(array, TENSORS[name])
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"run": "r1"}


def test_bfloat16_passes_between_torch_and_us(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensor = torch.tensor([1.0, -2.5, 3e30], dtype=torch.bfloat16)
    safetensors.torch.save_file({"w": tensor}, path)
    layout, start = read_header(path)
    assert layout.tensors == (TensorSpec("w", (3,), Dtype.BFLOAT16),)
    again = tmp_path / "again.safetensors"
    write(again, layout, [path.read_bytes()[start:]])
    assert torch.equal(safetensors.torch.load_file(again)["w"], tensor)


def test_order_is_that_of_the_bytes(tmp_path: Path) -> None:
    header = {"a": entry(offsets=(4, 8)), "b": entry(offsets=(0, 4))}
    layout, _ = read_header(raw(tmp_path / "x", header, bytes(8)))
    assert [spec.name for spec in layout.tensors] == ["b", "a"]


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not JSON"),
        (b"[]", b"", "an object is needed"),
        (b"\xff\xfe", b"", "not JSON"),
        ({}, b"", "1 to"),
        (b'{"a":1,"a":2}', b"", "a key occurs twice"),
        ({"a": 1}, b"", "dtype, shape and data_offsets"),
        ({"a": entry() | {"more": 1}}, bytes(4), "nothing else"),
        ({"a": entry("I64", offsets=(0, 8))}, bytes(8), "'I64'.*leave it out"),
        ({"a": entry(shape=[-1])}, bytes(4), r"shape \[-1\]"),
        ({"a": entry(shape=[0], offsets=[0, 0])}, b"", "below 1"),
        ({"a": entry(shape="x")}, bytes(4), "shape 'x'"),
        ({"a": entry(shape=[True])}, bytes(4), "shape"),
        ({"a": entry(offsets=[0])}, bytes(4), "data_offsets"),
        ({"a": entry(offsets=[0, 8])}, bytes(8), "need 0 to 4"),
        ({"a": entry(offsets=[4, 8])}, bytes(8), "need 0 to 4"),
        ({"a": entry(), "b": entry()}, bytes(4), "need 4 to 8"),
        ({"a": entry()}, bytes(5), "describes 4"),
        ({"a": entry()}, bytes(3), "describes 4"),
    ],
)
def test_refuses(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = raw(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(SafetensorsError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_refuses_files_that_are_no_such_thing(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    with pytest.raises(SafetensorsError, match="it has 3 bytes"):
        read_header(path)
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(SafetensorsError, match="cut short"):
        read_header(path)
    with pytest.raises(SafetensorsError, match="cannot read"):
        read_header(tmp_path / "missing")


@given(st.binary(max_size=200))
def test_random_bytes_never_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    with pytest.raises(SafetensorsError):
        read_header(path)


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    layout = Layout((TensorSpec("w", (4,), Dtype.FLOAT32),))
    with pytest.raises(SafetensorsError, match="15 bytes for a layout of 16"):
        write(path, layout, [bytes(10), bytes(5)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_headers_of_files_over_two_gigabytes(tmp_path: Path) -> None:
    layout = Layout((TensorSpec("w", (600 * 2**20,), Dtype.FLOAT32),))
    path = raw(tmp_path / "large.safetensors", {"w": entry(shape=[600 * 2**20], offsets=[0, layout.size_bytes])})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + layout.size_bytes)  # sparse: takes no disk
    assert read_header(path)[0] == layout


def test_writing_takes_one_chunk_at_a_time(tmp_path: Path) -> None:
    layout = Layout((TensorSpec("w", (1000,), Dtype.FLOAT32),))
    reused = bytearray(400)

    def chunks() -> Iterator[bytearray]:
        for number in range(10):
            reused[:] = bytes([number]) * 400
            yield reused

    path = tmp_path / "model.safetensors"
    write(path, layout, chunks())
    _, start = read_header(path)
    assert path.read_bytes()[start:] == b"".join(bytes([number]) * 400 for number in range(10))
