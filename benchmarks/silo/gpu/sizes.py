"""Jobs of the rows: full ones for a GPU of 80 GB or more, tiny ones that show on a CPU that the rows run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.datacenter.job import SiloJob

_BILLION = {"layers": 20, "dim": 2048, "heads": 16, "ffn_dim": 5632, "vocab": 32768}
_THREE_BILLION = {"layers": 28, "dim": 3072, "heads": 24, "ffn_dim": 8192, "vocab": 32768}
_TINY = {"layers": 2, "dim": 64, "heads": 4, "ffn_dim": 192, "vocab": 256}


@dataclass(frozen=True)
class Size:
    """What one run of the rows measures.

    Attributes:
        billion: model of the rows of speed and of privacy.
        three_billion: model of the row of float8.
        batch: batch of all rows but those below.
        small_batch: batch of the row of float8.
        large_vocab: classes in the row of the loss in chunks.
        loss_chunk_tokens: tokens of a chunk there.
        private_batch: batch of the row of privacy.
        compiled: whether blocks are compiled.
        formats: number formats whose speed is compared, the plain one first.
        ring_sequence: tokens of a rank in the row of ring attention.
        ring_heads: heads of queries, of keys and of values there.
        ring_head_dim: width of a head there.
        steps: steps that are timed in a row.
        repeats: how often; once more before, for the compiler.
        repeats_beside_recipe: the same in the row of speed.
    """

    billion: Mapping[str, int]
    three_billion: Mapping[str, int]
    batch: Mapping[str, int]
    small_batch: Mapping[str, int]
    large_vocab: int
    loss_chunk_tokens: int
    private_batch: Mapping[str, int]
    compiled: bool
    formats: tuple[str, str]
    ring_sequence: int
    ring_heads: tuple[int, int, int]
    ring_head_dim: int
    steps: int
    repeats: int
    repeats_beside_recipe: int

    def job(self, model: Mapping[str, int], batch: Mapping[str, int], **sections: dict[str, Any]) -> SiloJob:
        """Return a job of one rank; ``sections`` replace those that all rows have in common."""
        common: dict[str, Any] = {
            "job": {"name": "gpu", "steps": 1000},
            "model": dict(model),
            "batch": dict(batch),
            "precision": {"compute": self.formats[0]},
            "data_parallel": {"method": "zero3"},
            "memory": {"compile": self.compiled},
        }
        return SiloJob.model_validate(common | sections)


FULL = Size(
    _BILLION,
    _THREE_BILLION,
    batch={"sequence": 4096, "global_batch": 8, "micro_batch": 4},
    small_batch={"sequence": 4096, "global_batch": 4, "micro_batch": 2},
    large_vocab=128_256,
    loss_chunk_tokens=1024,
    private_batch={"sequence": 1024, "global_batch": 8, "micro_batch": 4},
    compiled=True,
    formats=("bfloat16", "float8"),
    ring_sequence=8192,
    ring_heads=(32, 8, 8),
    ring_head_dim=128,
    steps=4,
    repeats=1,
    repeats_beside_recipe=5,
)
SMOKE = Size(
    _TINY,
    _TINY,
    batch={"sequence": 32, "global_batch": 4, "micro_batch": 2},
    small_batch={"sequence": 32, "global_batch": 4, "micro_batch": 2},
    large_vocab=512,
    loss_chunk_tokens=16,
    private_batch={"sequence": 32, "global_batch": 4, "micro_batch": 2},
    compiled=False,
    formats=("bfloat16", "float32"),
    ring_sequence=32,
    ring_heads=(4, 2, 2),
    ring_head_dim=16,
    steps=1,
    repeats=2,
    repeats_beside_recipe=2,
)
