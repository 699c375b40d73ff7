"""Predictions against one step on PyTorch's fake backend, each in a separate process: bytes and memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.verify import fake_world, verify
from tests.datacenter.plan.jobs import small
from tests.datacenter.plan.own_process import in_a_process_of_its_own

pytestmark = pytest.mark.slow

MODEL = {"dim": 256, "heads": 8, "kv_heads": 4, "ffn_dim": 704, "vocab": 2048, "layers": 4}
TWO_BLOCKS = MODEL | {"layers": 2}
MOE = {"experts": 8, "top_k": 2, "expert_dim": 256, "shared_experts": 1}
LAYOUTS: list[tuple[str, int, dict[str, Any]]] = [
    (
        "zero3, two micro-batches",
        4,
        {"data_parallel": {"method": "zero3"}, "batch": {"global_batch": 8}, "model": TWO_BLOCKS},
    ),
    (
        "hybrid, two micro-batches, tensor parallel, full recomputation, bfloat16",
        8,
        {
            "mesh": {"tp": 2, "dp_replicate": 2},
            "memory": {"checkpointing": "full"},
            "precision": {"compute": "bfloat16"},
            "batch": {"global_batch": 8},
            "model": TWO_BLOCKS,
        },
    ),
    ("one rank holds each shard whole", 2, {"data_parallel": {"method": "zero3"}, "mesh": {"tp": 2}}),
    (
        "loss in chunks, classes divided, bfloat16",
        4,
        {
            "mesh": {"tp": 2},
            "memory": {"loss_chunk_tokens": 32},
            "precision": {"compute": "bfloat16"},
            "model": TWO_BLOCKS | {"vocab": 16384},
        },
    ),
]


LONG: list[tuple[str, int, dict[str, Any]]] = [
    ("zero1", 4, {"data_parallel": {"method": "zero1"}, "batch": {"global_batch": 12}}),
    ("zero2, bfloat16", 4, {"data_parallel": {"method": "zero2"}, "precision": {"compute": "bfloat16"}}),
    ("replicas beside tensor parallel", 8, {"data_parallel": {"method": "ddp"}, "mesh": {"tp": 2}}),
    ("one replica beside tensor parallel", 2, {"data_parallel": {"method": "ddp"}, "mesh": {"tp": 2}}),
    (
        "one replica, zero1, bfloat16, norms of queries and keys",
        2,
        {
            "data_parallel": {"method": "zero1"},
            "mesh": {"tp": 2},
            "precision": {"compute": "bfloat16"},
            "model": MODEL | {"qk_norm": True},
        },
    ),
    (
        "one replica, zero1, bfloat16, experts",
        2,
        {
            "data_parallel": {"method": "zero1"},
            "mesh": {"tp": 2},
            "precision": {"compute": "bfloat16"},
            "model": MODEL | {"moe": MOE},
        },
    ),
    ("selective recomputation", 8, {"mesh": {"tp": 2}, "memory": {"checkpointing": "selective"}}),
    (
        "tensor parallel without sequence and loss",
        8,
        {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}},
    ),
    (
        "tensor parallel, inputs gathered again",
        8,
        {"mesh": {"tp": 4}, "memory": {"checkpointing": "gathered"}, "precision": {"compute": "bfloat16"}},
    ),
    (
        "sequences cut in a ring, selective recomputation",
        4,
        {"mesh": {"cp": 2}, "context_parallel": {"method": "ring"}, "memory": {"checkpointing": "selective"}},
    ),
    ("sequences cut by heads", 4, {"mesh": {"cp": 2}}),
    ("sequences cut in a ring", 4, {"mesh": {"cp": 2}, "context_parallel": {"method": "ring"}}),
    (
        "sequences cut in a ring, plain products",
        4,
        {"mesh": {"cp": 2}, "context_parallel": {"method": "ring", "kernels": "plain"}},
    ),
    ("experts", 4, {"mesh": {"tp": 2}, "precision": {"compute": "bfloat16"}, "model": MODEL | {"moe": MOE}}),
    ("loss in chunks", 4, {"memory": {"loss_chunk_tokens": 32}, "model": MODEL | {"vocab": 16384}}),
    (
        "loss in chunks, adapters",
        4,
        {"memory": {"loss_chunk_tokens": 32}, "model": MODEL | {"vocab": 16384, "lora": {"rank": 8}}},
    ),
    ("adapters", 4, {"model": MODEL | {"lora": {"rank": 8}}}),
    ("Muon", 4, {"optimiser": {"name": "muon"}}),
    ("norms of queries and keys, wide heads", 4, {"model": MODEL | {"qk_norm": True, "head_dim": 64}}),
    ("the same, tensor parallel", 4, {"mesh": {"tp": 2}, "model": MODEL | {"qk_norm": True, "head_dim": 64}}),
]
"""Only with ``--every-layout``."""


def verified(sections: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Verify a job as written."""
    job = SiloJob.model_validate(sections)
    return [asdict(one) for one in verify(Task.of(job), layout_of(job, ranks))]


@pytest.mark.parametrize(
    ("name", "ranks", "changed"), [*LAYOUTS, *(pytest.param(*one, marks=pytest.mark.every_layout) for one in LONG)]
)
def test_counted_is_as_predicted(name: str, ranks: int, changed: dict[str, Any]) -> None:
    """The planner's figure: collective bytes within 2 %, memory within 10 %."""
    batch = {"sequence": 512, "global_batch": 8} | changed.get("batch", {})
    job = {"job": {"name": "counted", "steps": 1}, "model": MODEL} | changed | {"batch": batch}
    rows = in_a_process_of_its_own(verified, job, ranks)
    assert "memory" in {one["what"] for one in rows}
    assert len(rows) > 1
    for one in rows:
        bound = 0.10 if one["what"] == "memory" else 0.02
        assert one["counted"] > 0
        assert one["predicted"] == pytest.approx(one["counted"], rel=bound), f"{name}: {one}"


def test_a_second_world_in_one_process_is_refused() -> None:
    with fake_world(2), pytest.raises(LayoutError, match="in a process of its own"), fake_world(2):
        pass


def test_plain_ddp_is_refused() -> None:
    job = small(data_parallel={"method": "ddp"})
    with pytest.raises(LayoutError, match="reducer needs real memory"):
        verify(Task.of(job), layout_of(job, 4))
