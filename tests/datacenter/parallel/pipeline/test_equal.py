"""Every schedule, alone and with other axes, gives the losses and parameters of one process.

In float32, after ``training.STEPS`` of AdamW.

And with compiled blocks every parameter gets the gradient of one process whose blocks are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import (
    assert_same,
    assert_same_gradients,
    assert_same_together,
    gradients,
    method,
    small,
    train,
)

every_layout = pytest.mark.every_layout

GPIPE = {"schedule": "gpipe"}
ONE_F_ONE_B = {"schedule": "1f1b"}
INTERLEAVED = {"schedule": "interleaved", "stages_per_rank": 2}
LOOPED = {"schedule": "looped_bfs", "stages_per_rank": 2}
ZERO_BUBBLE = {"schedule": "interleaved_zero_bubble", "stages_per_rank": 2}
ZBV = {"schedule": "zbv"}
DUALPIPEV = {"schedule": "dualpipev"}
IN_FOUR = {"batch": {"micro_batch": 2}}
"""Enough micro-batches for a steady state between two ranks; V schedules, whose phases are longer, get eight."""


TWO_BLOCKS = {"model": {"layers": 2}}


def job(layers: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """Eight micro-batches of one pipeline by default; eight blocks where four ranks have two stages each."""
    return small(**{"model": {"layers": layers}, "batch": {"micro_batch": 1}} | sections)


@pytest.fixture(scope="module")
def alone() -> Callable[[int], dict[str, Any]]:
    """One process, by number of blocks."""
    return cache(lambda layers: run_ranks(train, 1, job(layers))[0])


@pytest.fixture(scope="module")
def gradients_alone() -> Callable[[int], dict[str, Any]]:
    """One process, nothing compiled, by number of blocks."""
    return cache(lambda layers: run_ranks(gradients, 1, small(model={"layers": layers}))[0])


@pytest.mark.parametrize(
    ("ranks", "pipeline", "sections"),
    [
        pytest.param(2, GPIPE, IN_FOUR, id="gpipe-2"),
        pytest.param(2, ONE_F_ONE_B | {"balance": "cost"}, IN_FOUR, id="1f1b-2-cost"),
        pytest.param(2, INTERLEAVED, IN_FOUR, id="interleaved-2"),
        pytest.param(2, LOOPED, IN_FOUR, id="looped_bfs-2"),
        pytest.param(2, ZERO_BUBBLE, IN_FOUR, id="interleaved_zero_bubble-2"),
        pytest.param(2, ZBV, {}, id="zbv-2", marks=every_layout),
        pytest.param(2, DUALPIPEV, {}, id="dualpipev-2"),
        pytest.param(4, GPIPE, {"mesh": {"pp": 4}}, id="gpipe-4", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"mesh": {"pp": 4}}, id="1f1b-4", marks=every_layout),
        pytest.param(4, INTERLEAVED, {"mesh": {"pp": 4}}, id="interleaved-4", marks=every_layout),
        pytest.param(4, LOOPED, {"mesh": {"pp": 4}}, id="looped_bfs-4", marks=every_layout),
        pytest.param(4, ZERO_BUBBLE, {"mesh": {"pp": 4}}, id="interleaved_zero_bubble-4", marks=every_layout),
        pytest.param(4, ZBV, {"mesh": {"pp": 4}}, id="zbv-4", marks=every_layout),
        pytest.param(4, DUALPIPEV, {"mesh": {"pp": 4}}, id="dualpipev-4", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {}, id="1f1b-2-ddp-2", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"data_parallel": method("zero1")}, id="1f1b-2-zero1-2", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"data_parallel": method("zero2")}, id="1f1b-2-zero2-2", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"data_parallel": method("zero3")}, id="1f1b-2-zero3-2"),
        pytest.param(4, INTERLEAVED, {}, id="interleaved-2-ddp-2", marks=every_layout),
        pytest.param(
            4, INTERLEAVED, {"data_parallel": method("zero3")}, id="interleaved-2-zero3-2", marks=every_layout
        ),
        pytest.param(4, LOOPED, {"data_parallel": method("zero3")}, id="looped_bfs-2-zero3-2", marks=every_layout),
        pytest.param(
            4, ZERO_BUBBLE, {"data_parallel": method("zero2")}, id="zero_bubble-2-zero2-2", marks=every_layout
        ),
        pytest.param(4, ZBV, {"data_parallel": method("zero2")}, id="zbv-2-zero2-2"),
        pytest.param(4, ZBV, {"memory": {"checkpointing": "full"}}, id="zbv-2-ddp-2-full", marks=every_layout),
        pytest.param(
            4,
            DUALPIPEV,
            {"data_parallel": {"method": "zero2", "cpu_offload": True}},
            id="dualpipev-2-zero2-2-offload",
            marks=every_layout,
        ),
        pytest.param(4, ONE_F_ONE_B, {"mesh": {"pp": 2, "tp": 2}, **IN_FOUR, **TWO_BLOCKS}, id="1f1b-2-tp-2"),
        pytest.param(
            4,
            INTERLEAVED,
            {"mesh": {"pp": 2, "tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}},
            id="interleaved-2-tp-2-plain",
            marks=every_layout,
        ),
        pytest.param(4, ZBV, {"mesh": {"pp": 2, "tp": 2}}, id="zbv-2-tp-2", marks=every_layout),
        pytest.param(4, DUALPIPEV, {"mesh": {"pp": 2, "tp": 2}}, id="dualpipev-2-tp-2", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"mesh": {"pp": 2, "cp": 2}}, id="1f1b-2-cp-2", marks=every_layout),
        pytest.param(
            8,
            ONE_F_ONE_B,
            {"mesh": {"pp": 2, "dp_replicate": 2}, "data_parallel": method("zero3")},
            id="1f1b-2-hybrid-2x2",
            marks=every_layout,
        ),
        *(
            pytest.param(
                8,
                pipeline,
                {"mesh": {"pp": 2, "tp": 2}, "data_parallel": method(zero)},
                id=f"{pipeline['schedule']}-2-{zero}-2-tp-2",
                marks=every_layout,
            )
            for pipeline, zero in (
                (ONE_F_ONE_B, "zero3"),
                (INTERLEAVED, "zero3"),
                (ZERO_BUBBLE, "zero2"),
                (ZBV, "zero2"),
                (DUALPIPEV, "zero2"),
            )
        ),
    ],
)
def test_equal_to_one_process(
    ranks: int, pipeline: dict[str, Any], sections: dict[str, Any], alone: Callable[[int], dict[str, Any]]
) -> None:
    sections = {"mesh": {"pp": 2}, "pipeline": pipeline} | sections
    layers = sections.get("model", {}).get("layers", 2 * sections["mesh"]["pp"])
    assert_same_together(run_ranks(train, ranks, job(layers, **sections)), alone(layers))


@every_layout
@pytest.mark.parametrize(
    ("pipeline", "zero"),
    [pytest.param(ONE_F_ONE_B, "zero3", id="1f1b"), pytest.param(ZERO_BUBBLE, "zero2", id="split")],
)
def test_experts_in_stages_are_equal_to_one_process(pipeline: dict[str, Any], zero: str) -> None:
    sections: dict[str, dict[str, Any]] = {
        "model": {"layers": 4, "moe": {"experts": 4, "expert_dim": 32}},
        "batch": {"micro_batch": 1},
    }
    wanted = run_ranks(train, 1, small(**sections))[0]
    sections |= {"mesh": {"pp": 2, "ep": 2}, "pipeline": pipeline, "data_parallel": method(zero)}
    for one in run_ranks(train, 4, small(**sections)):
        assert_same(one, wanted)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=every_layout)])
@pytest.mark.parametrize(
    ("ranks", "pipeline", "sections"),
    [
        pytest.param(
            4,
            ONE_F_ONE_B,
            {"mesh": {"pp": 2, "tp": 2}, **IN_FOUR, **TWO_BLOCKS},
            id="1f1b-2-tp-2",
            marks=every_layout,
        ),
        pytest.param(2, ZBV, {}, id="zbv-2", marks=needs_torch_2_13),
        pytest.param(
            4,
            ZBV,
            {"data_parallel": method("zero2")},
            id="zbv-2-zero2-2",
            marks=[every_layout, needs_torch_2_13],
        ),
        pytest.param(4, ONE_F_ONE_B, {}, id="1f1b-2-ddp-2", marks=every_layout),
        pytest.param(4, ONE_F_ONE_B, {"data_parallel": method("zero3")}, id="1f1b-2-zero3-2", marks=every_layout),
        pytest.param(4, GPIPE, {"data_parallel": method("zero1")}, id="gpipe-2-zero1-2", marks=every_layout),
        pytest.param(4, LOOPED, {"data_parallel": method("zero3")}, id="looped_bfs-2-zero3-2", marks=every_layout),
        pytest.param(
            4, DUALPIPEV, {"mesh": {"pp": 2, "tp": 2}}, id="dualpipev-2-tp-2", marks=[every_layout, needs_torch_2_13]
        ),
        *(
            pytest.param(
                8,
                pipeline,
                {"mesh": {"pp": 2, "tp": 2}, "data_parallel": method(zero)},
                id=f"{pipeline['schedule']}-2-{zero}-2-tp-2",
                marks=[every_layout, needs_torch_2_13] if pipeline in (ZERO_BUBBLE, ZBV) else every_layout,
            )
            for pipeline, zero in (
                (ONE_F_ONE_B, "zero3"),
                (INTERLEAVED, "zero3"),
                (ZERO_BUBBLE, "zero2"),
                (ZBV, "zero2"),
            )
        ),
    ],
)
def test_compiled_gradient_of_every_parameter_is_that_of_one_process(
    ranks: int,
    pipeline: dict[str, Any],
    sections: dict[str, Any],
    backend: str,
    gradients_alone: Callable[[int], dict[str, Any]],
) -> None:
    """Tensor parallel: the embedding's gradient would be 0 if its output went into a compiled block without a copy."""
    sections = {
        "mesh": {"pp": 2},
        "pipeline": pipeline,
        "model": {"layers": 4},
        "memory": {"compile": True},
        "batch": {"micro_batch": 1},
    } | sections
    found = run_ranks(gradients, ranks, small(**sections), backend, timeout_s=300)
    assert_same_gradients(found, gradients_alone(sections["model"]["layers"]))
