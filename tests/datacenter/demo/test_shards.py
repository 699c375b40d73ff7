"""Each participant gets different text, the same every time, and none of it is held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atoll.datacenter.data.stdlib import stdlib_documents, stdlib_files
from atoll.datacenter.demo.shards import held_out_rows, write_shards

SHARES = (3, 3, 1)


def names(shard: Path) -> set[str]:
    return {path.name for path in shard.iterdir()}


def test_each_module_is_in_one_shard_and_sizes_are_in_proportion(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, SHARES)
    found = [names(shard) for shard in shards]
    everything = {name.replace("/", ".") for name, _ in stdlib_files("train")}
    assert set.union(*found) == everything
    assert sum(map(len, found)) == len(everything)
    tops = [{name.split(".")[0] if name.count(".") > 1 else name for name in one} for one in found]
    assert not tops[0] & tops[1] | tops[0] & tops[2] | tops[1] & tops[2]
    sizes = [sum(path.stat().st_size for path in shard.iterdir()) for shard in shards]
    assert np.allclose(np.array(sizes) / sum(sizes), np.array(SHARES) / sum(SHARES), atol=0.1)


def test_the_split_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (write_shards(tmp_path / name, SHARES) for name in ("one", "two"))
    assert [names(shard) for shard in first] == [names(shard) for shard in second]


def test_held_out_rows_are_of_the_held_out_text() -> None:
    rows = held_out_rows(16, 65)
    assert rows.shape == (16, 65)
    text = b"".join(stdlib_documents("held_out"))
    assert all(row.tobytes() in text for row in rows)
    assert len({row.tobytes() for row in rows}) == 16
