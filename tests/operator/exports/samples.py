"""Runs to export: one that has ended, and one whose every text is hostile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from atoll.operator import (
    ChargeSummary,
    MemberSummary,
    PopulationSummary,
    RoundSummary,
    RunDetail,
    RunLedger,
    RunSpending,
    RunSummary,
)
from atoll.operator.exports.card import ExportedModel
from atoll.server.control import BestModel
from atoll.wire.layout import Dtype, Layout, TensorSpec

JOB = '[job]\nname = "digits"\nrounds = 2\n[cohort]\nsize = 3\n[training]\nlr = 0.1\n'
RUN = RunSummary("rabcdefghijkl", "digits", "finished", "all rounds are done", 2, 2, 100.0, 130.0, "ab" * 32)
LAYOUT = Layout((TensorSpec("w", (2, 2), Dtype.FLOAT32), TensorSpec("b", (2,), Dtype.BFLOAT16)))
WEIGHTS = np.arange(4, dtype="<f4").tobytes() + np.array([0x3F80, 0x4000], "<u2").tobytes()
HOSTILE = '# x\n---\nlicense: "mit"\n| a | <script>alert(1)</script> [x](javascript:1) `a` www.evil.org \x1b[2J\u202e'


def a_round(
    number: int,
    *,
    kind: str = "train",
    phase: str = "released",
    attempt: int = 0,
    metrics: Mapping[str, float] = MappingProxyType({}),
    members: tuple[MemberSummary, ...] = (),
) -> RoundSummary:
    return RoundSummary(
        round=number,
        attempt=attempt,
        kind=kind,
        phase=phase,
        reason="the goal of 3 is reached",
        cohort=3,
        reported=3,
        quorum=2,
        wanted=3,
        total_weight=30,
        opened_at=100.0 + 10 * number,
        closed_at=105.0 + 10 * number,
        remaining_s=None,
        metrics=metrics,
        members=members,
        version=number,
        created_at=99.0 + 10 * number,
        phases_s={"draw": 0.5, "collect": 4.0},
    )


def a_member(name: str = "pa", status: str = "reported", detail: str = "") -> MemberSummary:
    return MemberSummary(
        name, "north", status, detail, 10, 2.5, {"train/loss": 0.5}, claimed_s={"fit": 1.5}, payload_bytes=64
    )


ROUNDS = (
    a_round(0, phase="abandoned"),
    a_round(0, attempt=1, metrics={"train/loss": 2.0, "eval/accuracy": 0.1, "server/accuracy": 0.25}),
    a_round(1, metrics={"train/loss": 1.0, "eval/accuracy": 0.2, "server/accuracy": float("nan")}),
    a_round(2, kind="evaluate", metrics={"eval/accuracy": 0.75, "eval/examples": 30.0}),
)
BEST = BestModel("eval/accuracy", "max", 0.75, 2, "ab" * 32)
DETAIL = RunDetail(RUN, ROUNDS, 0, JOB, seed=2**60 + 1, best=BEST)
SPENDING = RunSpending("rabcdefghijkl", "digits", 1.23456, 1e-6, "prv", None, 2, 1.0, 2.0)
CHARGES = tuple(
    ChargeSummary(
        "people", one, RUN.run, one, 0, one, "gaussian", 1.0, 2.0, 0.1, "poisson", 1.0, "d" * 64, None, "line"
    )
    for one in range(2)
)
POPULATION = PopulationSummary(
    "people", "add_remove", "participant", 0.0, 3.0, 1e-6, "rdp", None, None, None, "", None, 5, "h", (SPENDING,), "",
    "", "",
)  # fmt: skip
LEDGER = RunLedger(RUN.run, POPULATION, CHARGES)


def model(detail: RunDetail = DETAIL, ledger: RunLedger | None = None, round_number: int = 2) -> ExportedModel:
    return ExportedModel(detail, round_number, LAYOUT, "ab" * 32, ledger)


def hostile() -> ExportedModel:
    """Each text that another party chooses is hostile."""
    run = replace(RUN, run=HOSTILE, name=HOSTILE, reason=HOSTILE, model_blob=HOSTILE)
    rounds = (a_round(0, metrics={f"server/{HOSTILE}": 0.5, HOSTILE: 1.0}),)
    job = f"[job]\nname = 'x'\n[training]\ntext = {HOSTILE_TOML}\n"
    layout = Layout((TensorSpec(HOSTILE, (3,), Dtype.FLOAT32),))
    population = replace(POPULATION, unit=HOSTILE, adjacency=HOSTILE)
    ledger = RunLedger(
        HOSTILE, replace(population, runs=(replace(SPENDING, run=HOSTILE, accountant=HOSTILE),)), CHARGES
    )
    return ExportedModel(RunDetail(run, rounds, 0, job), 1, layout, HOSTILE, ledger)


HOSTILE_TOML = '"' + HOSTILE.replace('"', '\\"').replace("\n", "\\n").replace("\x1b", "\\u001b") + '"'
