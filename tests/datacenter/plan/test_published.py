"""Predictions compared with published figures for H100s: a sanity check of the time model, within a stated factor.

torchtitan's tables (Liang et al. 2025) and those of Megatron-LM in float8 differ from each other by a factor of about
two for the same model and number of GPUs; the model's efficiencies lie between them.
"""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.prediction import predict_layout
from atoll.datacenter.plan.step_time import Machine
from tests.datacenter.plan.jobs import LLAMA_405B, example

FACTOR = 1.6
FLOAT8 = {"precision": {"compute": "float8"}}
FULL = {"memory": {"checkpointing": "full"}}
BY_8: dict[str, Any] = {"mesh": {"pp": 8, "tp": 8}, "model": LLAMA_405B, "batch": {"global_batch": 256}}
LOOPS = {"pipeline": {"schedule": "interleaved", "stages_per_rank": 5}}
PUBLISHED: list[tuple[str, str, int, dict[str, Any], float]] = [
    ("torchtitan 8B", "llama-8b", 8, {"memory": {"compile": False}}, 5_762),
    ("torchtitan 8B, compiled", "llama-8b", 8, {}, 6_667),
    ("torchtitan 8B, float8", "llama-8b", 8, FLOAT8, 8_532),
    (
        "torchtitan 70B, FSDP 32 x TP 8",
        "llama-70b",
        256,
        {"mesh": {"tp": 8}, "batch": {"global_batch": 512, "micro_batch": 16}} | FULL,
        597,
    ),
    ("torchtitan 405B, 8 x 8 x 8, 1F1B", "llama-70b", 512, BY_8 | FLOAT8 | FULL, 100),
    (
        "torchtitan 405B, 8 x 8 x 8, interleaved",
        "llama-70b",
        512,
        BY_8 | FLOAT8 | FULL | {"pipeline": {"schedule": "interleaved", "stages_per_rank": 8}},
        128,
    ),
    ("Megatron 8B", "llama-8b", 8, {"batch": {"global_batch": 128}} | FLOAT8, 14_000),
    (
        "Megatron 70B",
        "llama-70b",
        64,
        {"mesh": {"tp": 4, "pp": 4}, "batch": {"global_batch": 128}} | FLOAT8 | LOOPS,
        1_610,
    ),
]
"""Name, example, ranks, changes to the example, tokens per second and GPU."""


@pytest.mark.parametrize(("name", "example_name", "ranks", "changed", "published"), PUBLISHED)
def test_within_a_factor(name: str, example_name: str, ranks: int, changed: dict[str, Any], published: float) -> None:
    job = example(example_name, **changed)
    predicted = predict_layout(Task.of(job), layout_of(job, ranks), Machine.of(DATA_SHEETS["h100"])).tokens_per_s.value
    assert published / FACTOR < predicted < published * FACTOR, f"{name}: {predicted:.0f}, published {published}"


def test_better_is_predicted_to_be_better() -> None:
    """Predictions order the published configurations as the tables do."""
    found = {}
    for name, example_name, ranks, changed, _ in PUBLISHED:
        job = example(example_name, **changed)
        found[name] = predict_layout(Task.of(job), layout_of(job, ranks), Machine.of(DATA_SHEETS["h100"])).step.value
    assert found["torchtitan 8B, float8"] < found["torchtitan 8B, compiled"] < found["torchtitan 8B"]
    assert found["torchtitan 405B, 8 x 8 x 8, interleaved"] < found["torchtitan 405B, 8 x 8 x 8, 1F1B"]
