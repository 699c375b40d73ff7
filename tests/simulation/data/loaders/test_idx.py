"""IDX files as the MNIST page describes them: read plain and compressed, and refused when they are damaged."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atoll.simulation import data
from atoll.simulation.data import FormatError
from atoll.simulation.data.loaders import idx

IMAGES = np.random.default_rng(1).integers(0, 256, (5, 4, 3), np.uint8)
DIGITS = np.array([3, 1, 4, 1, 5], np.uint8)


def idx_bytes(array: NDArray[Any], code: int = 0x08) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, images: bytes, labels: bytes, end: str = "", prefix: str = "train") -> Path:
    pack: Callable[[bytes], bytes] = gzip.compress if end == ".gz" else bytes
    (folder / f"{prefix}-images-idx3-ubyte{end}").write_bytes(pack(images))
    (folder / f"{prefix}-labels-idx1-ubyte{end}").write_bytes(pack(labels))
    return folder


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_a_folder_is_read(tmp_path: Path, end: str, split: Any, prefix: str) -> None:
    found = data.load_idx(write(tmp_path, idx_bytes(IMAGES), idx_bytes(DIGITS), end, prefix), split, classes=("a", "b"))
    assert np.array_equal(found.inputs, IMAGES)
    assert found.labels.tolist() == DIGITS.tolist()
    assert found.labels.dtype == np.int64
    assert found.classes == ("a", "b")
    assert not found.inputs.flags.writeable


def test_a_dot_before_idx_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx_bytes(IMAGES))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx_bytes(DIGITS))
    assert len(data.load_idx(tmp_path, "test")) == 5


@pytest.mark.parametrize(("code", "dtype"), [(0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_every_type_of_value_is_read_in_the_order_of_the_machine(tmp_path: Path, code: int, dtype: str) -> None:
    array = np.arange(-3, 3).reshape(2, 3).astype(dtype)
    (tmp_path / "any").write_bytes(idx_bytes(array, code))
    found = data.read_idx(tmp_path / "any")
    assert np.array_equal(found, array)
    assert found.dtype.isnative


WHOLE = idx_bytes(IMAGES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x89PNG" + WHOLE, "is not an IDX file: it begins with 89504e47"),
        (WHOLE[:2] + b"\x07" + WHOLE[3:], "is not an IDX file: it begins with 00000703"),
        (WHOLE[:-1], "ends after 59 of 60 bytes: it is damaged, or not an IDX file"),
        (WHOLE[:9], "ends after 5 of 12 bytes"),
        (b"", "ends after 0 of 4 bytes"),
        (WHOLE + b"\0", "continues after the 60 bytes that its header states"),
        (gzip.compress(WHOLE)[:-12], "cannot be read: Compressed file ended"),
        (gzip.compress(WHOLE)[:20] + bytes(8) + gzip.compress(WHOLE)[28:], "cannot be read"),
        (struct.pack(">HBB3I", 0, 8, 3, *[1 << 31] * 3), "more than 4,294,967,296"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    write(tmp_path, content, idx_bytes(DIGITS))
    with pytest.raises(FormatError, match=re.escape(says)) as raised:
        data.load_idx(tmp_path)
    assert "train-images-idx3-ubyte" in str(raised.value)


def test_a_compressed_file_is_not_unpacked_beyond_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "MAX_BYTES", 59)
    write(tmp_path, WHOLE, idx_bytes(DIGITS), ".gz")
    with pytest.raises(FormatError, match="says that it holds 60 bytes, more than 59"):
        data.load_idx(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (DIGITS, DIGITS, "images-idx3-ubyte holds uint8 of 1 dimensions, not uint8 of 3: is it the right file?"),
        (IMAGES, IMAGES, "labels-idx1-ubyte holds uint8 of 3 dimensions, not uint8 of 1"),
        (IMAGES, DIGITS[:4], "has 5 images, "),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, images: NDArray[Any], labels: NDArray[Any], says: str
) -> None:
    write(tmp_path, idx_bytes(images), idx_bytes(labels))
    with pytest.raises(FormatError, match=re.escape(says)):
        data.load_idx(tmp_path)


def test_a_missing_file_names_the_package_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"has no train-images-idx3-ubyte or .*dataset-fashion-mnist"):
        data.load_idx(tmp_path)
    with pytest.raises(FormatError, match="split is 'valid': give train or test"):
        data.load_idx(tmp_path, "valid")  # type: ignore[arg-type]


def test_files_of_the_size_and_names_that_debian_installs(tmp_path: Path) -> None:
    """``dataset-fashion-mnist``: 60,000 and 10,000 compressed images."""
    for prefix, rows in (("train", 60_000), ("t10k", 10_000)):
        labels = (np.arange(rows) % 10).astype(np.uint8)
        write(tmp_path, idx_bytes(np.zeros((rows, 28, 28), np.uint8)), idx_bytes(labels), ".gz", prefix)
    train, test = data.load_idx(tmp_path), data.load_idx(tmp_path, "test")
    assert (train.inputs.shape, test.inputs.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
