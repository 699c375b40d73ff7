"""The cost of Muon in a step: matrices that are gathered, and the iteration that orthogonalises them (``train.muon``).

An iteration takes ``X`` of m x n, m <= n, to ``a X + (b A + c A A) X`` with ``A = X X^T``: ``4 m m n + 2 m m m`` FLOPs
(Jordan 2024). Each rank that holds a part of a matrix gathers it and iterates over the whole (Liu et al. 2025,
arXiv:2502.16982, section 2.3), so neither sharding nor tensor parallelism divides this work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from atoll.datacenter.plan.layout import MASTER_BYTES
from atoll.datacenter.plan.message import Message
from atoll.datacenter.plan.sharding import sharded
from atoll.datacenter.sizing.formula import Figure, given, largest, smallest, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.plan.layout import Layout, Task
    from atoll.datacenter.plan.message import Axis
    from atoll.datacenter.plan.stages import Share
    from atoll.datacenter.sizing.shape import Sizes

ITERATIONS = 5
"""As in ``train.muon``."""
_BFLOAT16 = 2
"""Matrices are gathered and orthogonalised in bfloat16, in jobs of every number format."""
_MOVED_BYTES = 3 * _BFLOAT16
"""Bytes read and written for an element of a whole matrix before the iterations: its norm, and a division by it."""
_COPIES = 5
"""Copies of a matrix held at once: gathered, before and after an iteration, and two products, at most as large."""

Cut = Literal["rows", "columns", "nothing"]
"""The dim of a matrix that tensor parallelism divides; FSDP always divides the rows."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices of one block that are alike.

    Attributes:
        names: their names.
        rows: rows of the whole matrix.
        columns: columns of the whole matrix.
        cut: what tensor parallelism divides.
    """

    names: tuple[str, ...]
    rows: Figure
    columns: Figure
    cut: Cut

    @property
    def elements(self) -> Figure:
        """Elements of one matrix."""
        return self.rows * self.columns

    @property
    def flops(self) -> Figure:
        """FLOPs to orthogonalise one matrix."""
        short, long = smallest(self.rows, self.columns), largest(self.rows, self.columns)
        return given("iterations", ITERATIONS) * (4 * short * short * long + 2 * short * short * short)


@lru_cache(maxsize=64)
def matrices_of(task: Task) -> tuple[Matrix, ...]:
    """Return the matrices of a block that Muon trains; with adapters, their matrices. Empty for other optimisers."""
    if task.job.optimiser.name != "muon":
        return ()
    layers = _layers(task.shape.sizes)
    lora = task.job.model.lora
    if lora is None:
        return layers
    rank = given("lora rank", lora.rank)
    found = []
    for layer in layers:
        if names := tuple(name for name in layer.names if name in lora.targets):
            inside, outside = tuple(f"{name}.lora_a" for name in names), tuple(f"{name}.lora_b" for name in names)
            by_rows = layer.cut == "rows"
            found.append(Matrix(inside, rank, layer.columns, "nothing" if by_rows else "columns"))
            found.append(Matrix(outside, layer.rows, rank, "rows" if by_rows else "nothing"))
    return tuple(found)


def _layers(sizes: Sizes) -> tuple[Matrix, ...]:
    """The linear layers of a block; Muon takes no experts."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return (
        Matrix(("wq",), queries, sizes.dim, "rows"),
        Matrix(("wk", "wv"), keys, sizes.dim, "rows"),
        Matrix(("wo",), sizes.dim, queries, "columns"),
        Matrix(("w1", "w3"), sizes.ffn_dim, sizes.dim, "rows"),
        Matrix(("w2",), sizes.dim, sizes.ffn_dim, "columns"),
    )


def orthogonalising(task: Task) -> Figure:
    """Return the FLOPs to orthogonalise the matrices of one block."""
    parts = [len(matrix.names) * matrix.flops for matrix in matrices_of(task)]
    return total(parts).called("orthogonalising the matrices of a block", "FLOP", "Jordan 2024")


def moved_by_muon(task: Task) -> Figure:
    """Return the bytes that a rank reads and writes of one block's whole matrices, beside the iterations."""
    elements = total([len(matrix.names) * matrix.elements for matrix in matrices_of(task)])
    return (given("bytes for an element of a whole matrix", _MOVED_BYTES) * elements).called(
        "bytes moved by Muon", "bytes"
    )


def whole_matrix(task: Task) -> Figure:
    """Return the bytes of the largest matrix while it is orthogonalised."""
    each = given("bytes of an element being orthogonalised", _COPIES * _BFLOAT16)
    return each * largest(*(matrix.elements for matrix in matrices_of(task)))


def spared_second_moments(task: Task, layout: Layout, share: Share) -> Figure:
    """Return the bytes of states that a rank is spared: Muon keeps one number for an element, AdamW two."""
    if not matrices_of(task):
        return Figure(0.0)
    shape, tp = task.shape, given("tp", layout.dims.tp)
    matrices = shape.adapters if shape.frozen else (shape.attention + shape.dense) / tp
    of_rank = sharded(task, layout, 0, given("blocks on this rank", share.all_blocks) * matrices)
    return (given("bytes of a float32", MASTER_BYTES) * of_rank).called("second moments that Muon lacks", "bytes")


def muon_messages(task: Task, layout: Layout, share: Share) -> Iterator[Message]:
    """Yield the gathers of a step: each matrix is gathered once."""
    blocks = given("blocks on this rank", share.all_blocks)
    for axis, size, names in _gathers(task, layout.shards, layout.dims.tp):
        what = f"Muon's updates of {', '.join(names)}"
        yield Message(axis, "all_gather", "update", size, blocks * len(names), what)


@lru_cache(maxsize=1024)
def _gathers(task: Task, shards: int, tp: int) -> tuple[tuple[Axis, Figure, tuple[str, ...]], ...]:
    """Return axis, bytes and names of gathers; gathers of equal size are combined.

    Rows that both axes divide are gathered first over the inner one, which is FSDP's. Otherwise DTensor begins with the
    last axis of the mesh, ``tp``.
    """
    found: dict[tuple[Axis, float], tuple[Figure, tuple[str, ...]]] = {}
    for matrix in matrices_of(task):
        whole = given("bytes of a bfloat16", _BFLOAT16) * matrix.elements
        sizes: dict[Axis, Figure] = {}
        if shards > 1:
            sizes["fsdp"] = whole / given("tp", tp) if matrix.cut == "rows" and tp > 1 else whole
        if tp > 1 and matrix.cut != "nothing":
            sizes["tp"] = whole / given("shards", shards) if matrix.cut == "columns" and shards > 1 else whole
        for axis, size in sizes.items():
            first, names = found.get((axis, size.value), (size, ()))
            found[axis, size.value] = first, (*names, *matrix.names)
    return tuple((axis, size, names) for (axis, _), (size, names) in found.items())
