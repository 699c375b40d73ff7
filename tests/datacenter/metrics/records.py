"""Facts and records for tests of sinks."""

from __future__ import annotations

from dataclasses import replace

from atoll.datacenter.metrics import Evaluation, RunFacts, StepRecord

FACTS = RunFacts(
    job="small",
    layout="dp_shard 2",
    world_size=2,
    total_steps=100,
    parameters=1000,
    active_parameters=1000,
    flops_per_token=6000.0,
    flops_formula="6 * active matrix weights 1,000",
    peak_flops_per_s=1e9,
)
RECORD = StepRecord(
    step=7,
    loss=3.25,
    lr=3e-4,
    grad_norm=1.5,
    tokens=8192,
    total_tokens=81920,
    seconds=2.0,
    data_wait_s=0.5,
    peak_memory_bytes=123_456_789,
    steps=4,
)

EVALUATION = Evaluation(step=7, loss=2.0, tokens=2048, seconds=1.25)


def record(**changes: float | None) -> StepRecord:
    """Return the record with other values."""
    return replace(RECORD, **changes)  # type: ignore[arg-type]  # some fields are whole numbers
