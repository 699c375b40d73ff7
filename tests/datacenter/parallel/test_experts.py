"""Every layout of a model with experts gives the losses and parameters of one process.

In float32, after ``training.STEPS`` of AdamW.

And with compiled blocks every parameter gets the gradient of one process whose blocks are not compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.datacenter.checkpoint.going_on import go_on, sections_of
from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import (
    TOLERANCE,
    assert_same,
    assert_same_gradients,
    assert_same_together,
    gradients,
    method,
    small,
    train,
)

MOE = {"experts": 4, "top_k": 2, "expert_dim": 32, "shared_experts": 1, "capacity_factor": 1.0, "loss_weight": 0.05}
PADDED = {**MOE, "padded": True}
BIAS = {"experts": 4, "top_k": 2, "expert_dim": 32, "balance": "bias", "bias_rate": 0.001}
ZERO1, ZERO2, ZERO3 = (method(name) for name in ("zero1", "zero2", "zero3"))
RING = {"method": "ring"}
every_layout = pytest.mark.every_layout


def job(**sections: dict[str, Any]) -> dict[str, Any]:
    return small(**{**sections, "model": {"moe": MOE, "layers": 2, **sections.get("model", {})}})


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, job())[0]
    return found


@pytest.fixture(scope="module")
def gradients_alone() -> dict[str, Any]:
    """One process, nothing compiled."""
    found: dict[str, Any] = run_ranks(gradients, 1, job())[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=every_layout),
        pytest.param(2, {"mesh": {"ep": 2}, "data_parallel": ZERO3}, id="ep-2"),
        pytest.param(4, {"mesh": {"ep": 2}, "data_parallel": ZERO3}, id="ep-2-efsdp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"ep": 2, "tp": 2}, "data_parallel": ZERO3}, id="ep-2-tp-2"),
        pytest.param(2, {"model": {"moe": PADDED}}, id="padded-2", marks=every_layout),
        pytest.param(
            4,
            {
                "mesh": {"ep": 2},
                "data_parallel": ZERO3,
                "model": {"moe": PADDED},
                "memory": {"checkpointing": "selective"},
            },
            id="padded-ep-2-efsdp-2-selective",
            marks=[every_layout, needs_torch_2_13],
        ),
        pytest.param(
            2,
            {
                "mesh": {"ep": 2},
                "data_parallel": ZERO3,
                "model": {"moe": PADDED},
                "memory": {"checkpointing": "selective"},
            },
            id="padded-ep-2-selective",
            marks=needs_torch_2_13,
        ),
        pytest.param(
            4,
            {"mesh": {"ep": 2, "tp": 2}, "data_parallel": ZERO3, "model": {"moe": PADDED}},
            id="padded-ep-2-tp-2",
            marks=every_layout,
        ),
        pytest.param(
            4,
            {
                "mesh": {"ep": 2, "dp_replicate": 2},
                "data_parallel": ZERO3,
                "memory": {"checkpointing": "selective"},
            },
            id="hybrid-2-ep-2-selective",
            marks=[every_layout, needs_torch_2_13],
        ),
        pytest.param(4, {"mesh": {"ep": 4, "cp": 2}, "data_parallel": ZERO2}, id="ep-4-ulysses-2", marks=every_layout),
        pytest.param(2, {"mesh": {"cp": 2}, "context_parallel": RING}, id="ring-2"),
        pytest.param(
            4,
            {"mesh": {"cp": 4}, "context_parallel": RING, "batch": {"micro_batch": 4}},
            id="ring-4",
            marks=every_layout,
        ),
        pytest.param(4, {"mesh": {"ep": 4}, "data_parallel": ZERO1}, id="ep-4", marks=every_layout),
        pytest.param(
            4, {"mesh": {"ep": 2, "dp_replicate": 2}, "data_parallel": ZERO3}, id="hybrid-2-ep-2", marks=every_layout
        ),
        pytest.param(
            2,
            {"mesh": {"ep": 2}, "data_parallel": ZERO3, "memory": {"checkpointing": "full"}},
            id="ep-2-full",
            marks=every_layout,
        ),
        pytest.param(
            2, {"mesh": {"tp": 2}, "memory": {"checkpointing": "selective"}}, id="tp-2-selective", marks=every_layout
        ),
        pytest.param(
            2,
            {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}},
            id="tp-2-plain",
            marks=every_layout,
        ),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "ep": 2}, "data_parallel": ZERO2, "batch": {"micro_batch": 1}},
            id="pp-2-ep-2",
            marks=every_layout,
        ),
        pytest.param(
            8,
            {"mesh": {"ep": 2, "cp": 2, "tp": 2}, "data_parallel": ZERO3, "context_parallel": RING},
            id="dp-2-ring-2-tp-2-ep-2",
            marks=every_layout,
        ),
        pytest.param(
            8,
            {
                "mesh": {"pp": 2, "ep": 4, "cp": 2},
                "data_parallel": ZERO2,
                "batch": {"micro_batch": 1},
                "pipeline": {"schedule": "1f1b"},
            },
            id="pp-2-dp-2-ulysses-2-ep-4",
            marks=every_layout,
        ),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    assert_same_together(run_ranks(train, ranks, job(**sections)), alone)


def test_biases_of_all_ranks_are_those_of_one_process() -> None:
    (alone,) = run_ranks(train, 1, job(model={"moe": BIAS}))
    assert len(alone["buffers"]) == 2
    for one in run_ranks(train, 4, job(model={"moe": BIAS}, mesh={"ep": 2, "cp": 2}, data_parallel=ZERO3)):
        assert_same(one, alone)
        for name, bias in one["buffers"].items():
            assert bias.abs().max() > 0
            assert torch.equal(bias, alone["buffers"][name])


def test_a_checkpoint_of_dealt_out_experts_goes_on_without_them_dealt_out(tmp_path: Path) -> None:
    """This includes the biases, which are not parameters."""
    sections: dict[str, Any] = {"model": {"moe": BIAS, "layers": 2}}
    (alone,) = run_ranks(train, 1, small(**sections), 4)
    dealt = sections_of(**sections, mesh={"ep": 2}, data_parallel=ZERO3)
    for one in run_ranks(go_on, 2, dealt, str(tmp_path), 2):
        torch.testing.assert_close(one["losses"], alone["losses"][:2], rtol=0, atol=TOLERANCE)
        assert any(one["parameters"][f"model.{name}"].abs().max() > 0 for name in alone["buffers"])
    (last,) = run_ranks(go_on, 1, sections_of(**sections), str(tmp_path), 4)
    assert last["resumed"] == 2
    torch.testing.assert_close(last["losses"], alone["losses"][2:], rtol=0, atol=TOLERANCE)
    for name, value in (alone["parameters"] | alone["buffers"]).items():
        torch.testing.assert_close(last["parameters"][f"model.{name}"], value, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=every_layout)])
@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"mesh": {"ep": 2}, "data_parallel": ZERO3}, id="ep-2"),
        pytest.param(4, {"mesh": {"ep": 2, "tp": 2}, "data_parallel": ZERO3}, id="ep-2-tp-2", marks=every_layout),
        pytest.param(2, {}, id="ddp-2", marks=every_layout),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"ep": 2}, "data_parallel": ZERO3}, id="ep-2-efsdp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"ep": 4, "cp": 2}, "data_parallel": ZERO2}, id="ep-4-ulysses-2", marks=every_layout),
        pytest.param(
            4,
            {"mesh": {"ep": 2, "cp": 2}, "data_parallel": ZERO3, "context_parallel": RING},
            id="ep-2-ring-2",
            marks=every_layout,
        ),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "ep": 2}, "data_parallel": ZERO2, "batch": {"micro_batch": 1}},
            id="pp-2-ep-2",
            marks=every_layout,
        ),
    ],
)
def test_compiled_gradient_of_every_parameter_is_that_of_one_process(
    ranks: int, sections: dict[str, Any], backend: str, gradients_alone: dict[str, Any]
) -> None:
    found = run_ranks(gradients, ranks, job(memory={"compile": True}, **sections), backend, timeout_s=300)
    assert_same_gradients(found, gradients_alone)
