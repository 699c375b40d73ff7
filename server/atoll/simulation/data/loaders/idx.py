"""IDX files: the format of MNIST and of Fashion-MNIST.

Sources: http://yann.lecun.com/exdb/mnist; Xiao et al. 2017, https://arxiv.org/abs/1708.07747.

A file is two zero bytes, a byte for the type of its values, a byte for the number of dimensions, each dimension as
a big-endian uint32, then the values, big-endian, row by row.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.simulation.data.errors import FormatError
from atoll.simulation.data.loaders.examples import Examples, read_only

Split: TypeAlias = Literal["train", "test"]

MAX_BYTES = 4 << 30
"""Largest array to read, in bytes."""

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_PREFIXES: dict[str, str] = {"train": "train", "test": "t10k"}


def load_idx(folder: str | Path, split: Split = "train", *, classes: tuple[str, ...] = ()) -> Examples:
    """Load MNIST, Fashion-MNIST or another data set in the same four files from a folder.

    On Debian and Ubuntu the package ``dataset-fashion-mnist`` installs Fashion-MNIST in
    ``/usr/share/datasets/fashion-mnist``.

    Args:
        folder: holds ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the same with ``t10k``, plain or with
            ``.gz``.
        split: ``train``, or ``test`` (the ``t10k`` files).
        classes: names of the classes.

    Returns:
        Inputs uint8 [rows, height, width], labels int64 [rows].

    Raises:
        FormatError: if a file is missing, damaged or not an IDX file, or images and labels differ in number.
    """
    if split not in _PREFIXES:
        raise FormatError(f"split is {split!r}: give train or test")
    images, labels = (
        _find(Path(folder), f"{_PREFIXES[split]}-{what}") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    pixels, digits = read_idx(images), read_idx(labels)
    for path, array, dimensions in ((images, pixels, 3), (labels, digits, 1)):
        if array.dtype != np.uint8 or array.ndim != dimensions:
            raise FormatError(
                f"{path} holds {array.dtype} of {array.ndim} dimensions, not uint8 of {dimensions}: is it the right "
                "file?"
            )
    if len(pixels) != len(digits):
        raise FormatError(
            f"{images} has {len(pixels)} images, {labels} has {len(digits)} labels: take both from one data set"
        )
    return read_only(Examples(pixels, digits.astype(np.int64), classes=classes))


def read_idx(path: str | Path) -> NDArray[Any]:
    """Read one IDX file, plain or compressed with gzip; the content decides which, not the file's name.

    Returns:
        An array in the machine's byte order.

    Raises:
        FormatError: if it is missing, damaged, too large, or not an IDX file.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if not packed:
                return _read(raw, path)
            with gzip.open(raw) as unpacked:
                return _read(unpacked, path)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error


def _find(folder: Path, name: str) -> Path:
    """The file of this name, plain or compressed; some copies of MNIST write a dot before ``idx``."""
    names = [f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    found = next((folder / each for each in names if (folder / each).is_file()), None)
    if found is None:
        raise FormatError(
            f"{folder} has no {name} or {name}.gz: give the folder with the original files (Debian's package "
            "dataset-fashion-mnist installs Fashion-MNIST in /usr/share/datasets/fashion-mnist)"
        )
    return found


def _read(file: IO[bytes] | gzip.GzipFile, path: Path) -> NDArray[Any]:
    zeros, code, dimensions = struct.unpack(">HBB", _exactly(file, 4, path))
    if zeros or code not in _TYPES or not dimensions:
        raise FormatError(f"{path} is not an IDX file: it begins with {zeros:04x}{code:02x}{dimensions:02x}")
    shape = struct.unpack(f">{dimensions}I", _exactly(file, 4 * dimensions, path))
    dtype = np.dtype(_TYPES[code])
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_BYTES:
        raise FormatError(
            f"{path} says that it holds {size:,} bytes, more than {MAX_BYTES:,}: it is damaged, or cut it"
        )
    values = np.frombuffer(_exactly(file, size, path), dtype).reshape(shape)
    if file.read(1):
        raise FormatError(f"{path} continues after the {size:,} bytes that its header states: it is damaged")
    return values.astype(dtype.newbyteorder("="))


def _exactly(file: IO[bytes] | gzip.GzipFile, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise FormatError(f"{path} ends after {len(data):,} of {size:,} bytes: it is damaged, or not an IDX file")
    return data
