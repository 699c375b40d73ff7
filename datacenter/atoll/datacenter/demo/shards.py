"""Split the standard library's text: different modules for each participant, and held-out text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atoll.datacenter.data.stdlib import stdlib_files
from atoll.datacenter.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def write_shards(folder: Path, shares: Sequence[int]) -> list[Path]:
    """Write one folder of text for each participant. Each package, or top-level module, is in one folder only.

    They are assigned in order of size, largest first, each to the participant with the least text relative to its
    share. The split is the same every time.

    Args:
        folder: parent of the folders.
        shares: proportions of the text.

    Returns:
        The folders.
    """
    modules: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for name, path in stdlib_files("train"):
        modules[name.partition("/")[0]].append((name, path))
    sizes = {module: sum(path.stat().st_size for _, path in files) for module, files in modules.items()}
    held = [0] * len(shares)
    shards = [folder / f"text-{number}" for number in range(len(shares))]
    for shard in shards:
        shard.mkdir()
    for module in sorted(sizes, key=lambda one: (-sizes[one], one)):
        owner = min(range(len(shares)), key=lambda number: held[number] / shares[number])
        held[owner] += sizes[module]
        for name, path in modules[module]:
            (shards[owner] / name.replace("/", ".")).write_bytes(path.read_bytes())
    return shards


def held_out_rows(rows: int, length: int) -> NDArray[np.uint8]:
    """Return rows cut from the held-out text at equal distances.

    Args:
        rows: number of rows.
        length: bytes of each.

    Returns:
        uint8 ``[rows, length]``.

    Raises:
        DataError: if there is less text.
    """
    text = np.frombuffer(b"".join(path.read_bytes() for _, path in stdlib_files("held_out")), np.uint8)
    if text.size < rows * length:
        raise DataError(f"{text.size} bytes are held out of the standard library; {rows} rows of {length} need more")
    starts = np.linspace(0, text.size - length, rows, dtype=np.int64)
    return np.take(text, starts[:, None] + np.arange(length))
