"""Published steps on H100s, with their layouts as their sources state them.

- torchtitan, December 2024 (commit 9dec370; ``benchmarks/llama3_h100_202412_torchtitan.md``, Liang et al. 2025) and
  June 2025 (``benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md``): H100s limited to 500 W with 2.4 TB/s of memory.
  Pipelines: that commit makes as many micro-batches as the pipeline has ranks (8, of four sequences) and two stages a
  rank if they are interleaved, unless told otherwise; the tables name neither.
- Llama 3 405B: Grattafiori et al. 2024, table 4. Memory is not published.
- Megatron-LM: ``examples/llama/README.md`` (core_r0.12.0), for a DGX H100. With TP its communication is overlapped, as
  in NeMo's ``scripts/performance`` that the page follows. Memory is not published.
"""

from __future__ import annotations

from typing import Any

from benchmarks.silo.published import Row

LLAMA_405B: dict[str, Any] = {
    "vocab": 128_256,
    "layers": 126,
    "dim": 16_384,
    "heads": 128,
    "kv_heads": 8,
    "ffn_dim": 53_248,
}
LLAMA3_FLOPS = 6 * 405e9 + 6 * 126 * 16_384 * 8192
"""FLOPs per token of Llama 3 405B at 8,192 tokens, with scores under the mask only; converts TFLOP/s to tokens/s."""
_FLOAT8: dict[str, Any] = {"precision": {"compute": "float8"}}
_EAGER: dict[str, Any] = {"memory": {"compile": False}}
_FULL: dict[str, Any] = {"memory": {"checkpointing": "full"}}
_NONE: dict[str, Any] = {"memory": {"checkpointing": "none"}}
_ASYNC: dict[str, Any] = {"tensor_parallel": {"asynchronous": True}}
_TP8: dict[str, Any] = {"mesh": {"tp": 8}}
_ZERO1: dict[str, Any] = {"data_parallel": {"method": "zero1"}}
_CUBE: dict[str, Any] = {"mesh": {"pp": 8, "tp": 8}, "model": LLAMA_405B}
_LIMITED = "h100-500w"


def _batch(sequences: int, micro_batch: int) -> dict[str, Any]:
    return {"batch": {"global_batch": sequences, "micro_batch": micro_batch}}


def _interleaved(stages: int) -> dict[str, Any]:
    return {"pipeline": {"schedule": "interleaved", "stages_per_rank": stages}}


def _ring(cp: int) -> dict[str, Any]:
    return {"mesh": {"cp": cp}, "context_parallel": {"method": "ring"}}


def _titan(what: str, ranks: int, tokens_per_s: float, changes: dict[str, Any], **more: Any) -> Row:
    example = "llama-8b" if what.startswith("8B") else "llama-70b"
    return Row("torchtitan", what, _LIMITED, example, ranks, tokens_per_s, changes, **more)


def _long(cp: int, sequence: int, tokens_per_s: float, reserved_gib: float) -> Row:
    """One sequence a rank, cut over ``cp`` ranks."""
    batch = {"batch": {"global_batch": 8 // cp, "micro_batch": 1, "sequence": sequence}}
    what = f"8B on 8, CP {cp}, {sequence:,} tokens, compiled, float8"
    changes = (_ring(cp) if cp > 1 else {}) | batch | _FULL | _FLOAT8
    return _titan(what, 8, tokens_per_s, changes, target=False, reserved_gib=reserved_gib)


def _llama3(ranks: int, dp: int, flops_per_s: float) -> Row:
    changes = _batch(2048, 1) | _NONE | _ZERO1 | _interleaved(7) | {"mesh": {"pp": 16, "tp": 8}, "model": LLAMA_405B}
    what = f"405B on {ranks:,}, TP 8 PP 16 DP {dp}"
    return Row("Llama 3", what, "h100", "llama-70b", ranks, flops_per_s / LLAMA3_FLOPS, changes)


def _megatron(what: str, ranks: int, tokens_per_s: float, changes: dict[str, Any], *, fitted: bool = False) -> Row:
    example = "llama-8b" if what.startswith("8B") else "llama-70b"
    changes = _FLOAT8 | _NONE | _ZERO1 | changes
    return Row("Megatron-LM", what, "h100", example, ranks, tokens_per_s, changes, fitted=fitted)


_ON_8, _ON_128 = _batch(16, 2), _batch(256, 2)
_ON_64 = _batch(96, 12) | _TP8
_ON_256 = _batch(512, 16) | _FULL | _TP8
_ON_512 = _CUBE | _batch(256, 4) | _FULL | _FLOAT8 | _ASYNC | _ZERO1

ROWS = (
    _titan("8B on 8", 8, 5_762, _ON_8 | _EAGER, fitted=True, reserved_gib=82.4),
    _titan("8B on 8, compiled", 8, 6_667, _ON_8, fitted=True, reserved_gib=77.0),
    _titan("8B on 8, compiled, float8", 8, 8_532, _ON_8 | _FLOAT8, fitted=True, reserved_gib=76.8),
    _titan("8B on 128, compiled", 128, 6_514, _ON_128, fitted=True, reserved_gib=62.0),
    _titan("8B on 64, FSDP 8 x TP 8", 64, 4_378, _ON_64),
    _titan("70B on 256, FSDP 32 x TP 8", 256, 597, _ON_256, fitted=True),
    _titan("70B on 256, FSDP 32 x async TP 8", 256, 652, _ON_256 | _ASYNC),
    _titan("405B on 512, 8 x 8 x 8, 1F1B, float8", 512, 100, _ON_512, fitted=True, reserved_gib=82.5),
    _titan(
        "405B on 512, 8 x 8 x 8, interleaved, float8",
        512,
        128,
        _ON_512 | _interleaved(2),
        fitted=True,
        reserved_gib=72.7,
    ),
    _llama3(8192, 64, 430e12),
    _llama3(16_384, 128, 400e12),
    _megatron("8B on 8, CP 2, float8", 8, 13_812, _batch(128, 1) | _ring(2), fitted=True),
    _megatron(
        "70B on 64, TP 4 PP 8, float8",
        64,
        1_621,
        _batch(128, 1) | _interleaved(5) | _ASYNC | {"mesh": {"tp": 4, "pp": 8}},
    ),
    _megatron(
        "405B on 1,024, TP 8 PP 8 CP 2, float8",
        1024,
        315,
        _batch(512, 1) | _ring(2) | _interleaved(8) | _ASYNC | _CUBE | {"mesh": {"pp": 8, "tp": 8, "cp": 2}},
    ),
    _titan("8B on 128", 128, 5_605, _ON_128 | _EAGER, target=False, reserved_gib=67.0),
    _titan("8B on 128, compiled, float8", 128, 8_380, _ON_128 | _FLOAT8, target=False, reserved_gib=61.8),
    _titan("8B on 64, FSDP 8 x TP 8, float8", 64, 5_078, _ON_64 | _FLOAT8, target=False),
    _titan("8B on 64, FSDP 8 x async TP 8", 64, 4_809, _ON_64 | _ASYNC, target=False),
    _titan("70B on 256, FSDP 32 x TP 8, float8", 256, 829, _ON_256 | _FLOAT8, target=False, reserved_gib=71.9),
    _titan(
        "70B on 256, FSDP 32 x async TP 8, float8",
        256,
        876,
        _ON_256 | _FLOAT8 | _ASYNC,
        target=False,
        reserved_gib=67.6,
    ),
    _long(1, 32_768, 3_890, 83.9),
    _long(2, 65_536, 2_540, 84.2),
    _long(4, 131_072, 1_071, 84.0),
    _long(8, 262_144, 548, 84.5),
)
"""The rows of the planner's target, then others of the same tables."""
