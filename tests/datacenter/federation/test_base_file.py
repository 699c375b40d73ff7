"""Ranks of one machine fetch each chunk once and write each other's parts; ranks that cannot, fetch their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.base_file import BaseFile, share_out
from atoll.wire.digest import MIN_CHUNK_BYTES
from tests.datacenter.federation.parts import Floats, chunk, manifest_of, model, piece, places
from tests.datacenter.ranks import run_ranks

RANKS = 2
CHUNKS = 6
CPU = torch.device("cpu")


def held_by(rank: int) -> Base:
    """Columns of the matrix, which lie in all of its chunks, and half of the vector."""
    folder = Path(os.environ["TEST_FOLDER"])
    return Base(folder / f"{rank}", [piece("w", (0, 16 * rank), (40, 16)), piece("b", (50 * rank,), (50,))])


def fetch(base: Base, flat: Floats) -> list[int]:
    """Fetch as a rank does: on return, every rank has fetched."""
    lacking = base.lacks(manifest_of(flat))
    for number in lacking:
        base.take(manifest_of(flat), number, chunk(flat, number))
    dist.barrier()
    return lacking


def holds(base: Base, flat: Floats) -> bool:
    return all(
        np.array_equal(base.of(index).numpy(), flat[places(one.ranges)]) for index, one in enumerate(base.pieces)
    )


def in_turns(folder: str, *, unseen: bool) -> list[tuple[list[int], set[int], bool]]:
    """Return what a rank fetched of three models, which pieces changed, and whether it then holds the model."""
    os.environ["TEST_FOLDER"] = folder
    base = held_by(dist.get_rank())
    if unseen and dist.get_rank():
        (Path(folder) / "1").unlink()
    base.meet(CPU)
    found, flat = [], model(0)
    for change in (0.0, 1.0, 0.0):
        flat[-1] += change  # an element of rank 1's vector, whichever rank fetches it
        base.taken_over()
        dist.barrier()
        fetched = fetch(base, flat)
        found.append((fetched, base.changed, holds(base, flat)))
        dist.barrier()
    base.close()
    return found


def test_each_chunk_is_fetched_once_and_written_to_all_who_hold_something_of_it(tmp_path: Path) -> None:
    one, other = run_ranks(in_turns_seen, RANKS, str(tmp_path))
    assert sorted(one[0][0] + other[0][0]) == list(range(CHUNKS))
    assert abs(len(one[0][0]) - len(other[0][0])) <= 1
    assert sorted(one[1][0] + other[1][0]) == [CHUNKS - 1]
    assert (one[1][1], other[1][1]) == (set(), {1}), "what has changed is known where it is held"
    assert one[2][0] == other[2][0] == []
    assert all(whole for turns in (one, other) for _, _, whole in turns)
    assert not list(tmp_path.iterdir())


def test_ranks_that_do_not_see_each_others_files_fetch_for_themselves(tmp_path: Path) -> None:
    one, other = run_ranks(in_turns_unseen, RANKS, str(tmp_path))
    assert one[0][0] == other[0][0] == list(range(CHUNKS))
    assert (one[1][1], other[1][1]) == (set(), {1})
    assert all(whole for turns in (one, other) for _, _, whole in turns)


def in_turns_seen(folder: str) -> list[tuple[list[int], set[int], bool]]:
    """See ``in_turns``."""
    return in_turns(folder, unseen=False)


def in_turns_unseen(folder: str) -> list[tuple[list[int], set[int], bool]]:
    """See ``in_turns``; rank 0 cannot open rank 1's file."""
    return in_turns(folder, unseen=True)


@pytest.mark.parametrize("cut", [1, 5, 20, 39])
def test_chunks_are_shared_out_evenly_where_there_is_a_choice(cut: int, tmp_path: Path) -> None:
    """Two row cuts share only the chunk that contains the cut."""
    parts = [[piece("w", (0, 0), (cut, 32))], [piece("w", (cut, 0), (40 - cut, 32)), piece("b", (0,), (100,))]]
    files = [BaseFile.make(tmp_path / f"{rank}", held) for rank, held in enumerate(parts)]
    plans = [share_out(files, rank, MIN_CHUNK_BYTES) for rank in range(RANKS)]
    assert sorted([*plans[0], *plans[1]]) == list(range(CHUNKS))
    border = cut * 32 * 4 // MIN_CHUNK_BYTES
    assert set(plans[0]) - {border} == set(range(border))
    for file in files:
        file.close()
