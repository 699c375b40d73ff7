"""With compiled blocks every parameter gets the gradient of one process whose blocks are not compiled.

Layouts with a pipeline: ``pipeline/test_equal.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same_gradients, gradients, method, small_in_two

every_layout = pytest.mark.every_layout


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process, nothing compiled."""
    found: dict[str, Any] = run_ranks(gradients, 1, small_in_two(1))[0]
    return found


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=every_layout)])
@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2", marks=every_layout),  # test_context.py compiles blocks within DDP
        pytest.param(2, {"data_parallel": method("zero1")}, id="zero1-2", marks=every_layout),
        pytest.param(2, {"data_parallel": method("zero2")}, id="zero2-2", marks=every_layout),
        pytest.param(2, {"data_parallel": method("zero3"), "memory": {"checkpointing": "selective"}}, id="zero3-2"),
        pytest.param(2, {"memory": {"checkpointing": "full"}}, id="full-2", marks=every_layout),
        pytest.param(2, {"memory": {"checkpointing": "budget", "budget": 0.3}}, id="budget-2", marks=every_layout),
        pytest.param(
            4, {"data_parallel": method("zero3"), "mesh": {"dp_replicate": 2}}, id="hybrid-2x2", marks=every_layout
        ),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
        pytest.param(
            2,
            {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}},
            id="tp-2-plain",
            marks=every_layout,
        ),
        pytest.param(4, {"mesh": {"tp": 2}, "data_parallel": method("zero3")}, id="zero3-2-tp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"tp": 2}, "data_parallel": method("zero1")}, id="zero1-2-tp-2", marks=every_layout),
    ],
)
def test_compiled_gradient_of_every_parameter_is_that_of_one_process(
    ranks: int, sections: dict[str, Any], backend: str, alone: dict[str, Any]
) -> None:
    """Tensor parallel: the embedding's gradient would be 0 if its output went into a compiled block without a copy."""
    memory = {"compile": True} | sections.get("memory", {})
    job = small_in_two(ranks, **sections | {"memory": memory})
    for found in run_ranks(gradients, ranks, job, backend, timeout_s=300):
        assert_same_gradients([found], alone)
