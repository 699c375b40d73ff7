"""Silos of different layouts and edge clients in one round: their common result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.server.jobs.fragments import deal
from tests.patience import WAIT_S, window_s
from tests.system.conftest import Hire, Serve
from tests.system.diloco import diloco, streaming
from tests.system.operators import Operator, layout_of
from tests.system.participants import examples_of, trained
from tests.system.processes import Nursery
from tests.system.servers import Server
from tests.system.silos import (
    GLOBAL_BATCH,
    JOB,
    OUTER,
    SEQUENCE,
    STEPS,
    Sections,
    Silo,
    initial_of,
    job_of,
    outer_job,
)

pytestmark = pytest.mark.system
LAYOUTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "fsdp": {},
    "tp": {"mesh": {"tp": 2}},
    "pp": {"mesh": {"pp": 2}},
}
STREAMING = [
    pytest.param(0, "tp", marks=pytest.mark.every_layout),
    pytest.param(2, "tp", marks=pytest.mark.every_layout),
    (2, "pp"),
]
"""Steps that overlap, and the layout of the silo beside one of FSDP."""
ROUNDS = 2
TOKENS = STEPS * GLOBAL_BATCH * SEQUENCE


def reported_weights(operator: Operator, run: str) -> list[list[int]]:
    """Return the weights of each released round's members; every attempt must have been released."""
    rounds = operator.rounds(run)
    assert all(seen.phase == "released" for seen in rounds), rounds
    return [sorted(member.weight for member in seen.members if member.status == "reported") for seen in rounds]


def train_together(
    processes: Nursery, server: Server, initial: Mapping[str, npt.NDArray[Any]], name: str
) -> tuple[bytes, list[list[int]]]:
    """Train one silo of each layout, each with its own data; returns the last model and the weights of updates."""
    silos = [
        Silo(processes, f"{name}-{layout}", server, 2, of_layout(number, layout), "--max-rounds", str(ROUNDS)).start()
        for number, layout in enumerate(LAYOUTS)
    ]
    run = server.operator.submit(outer_job(name, ROUNDS, len(silos)), initial)
    server.operator.finished(run, WAIT_S)
    assert [silo.process.wait() for silo in silos] == [0] * len(silos)
    assert [silo.outcome()["step"] for silo in silos] == [ROUNDS * STEPS] * len(silos)
    return server.operator.model(run), reported_weights(server.operator, run)


def of_layout(number: int, layout: str) -> Sections:
    """The job of a silo by number."""
    return job_of(job={"seed": number}, **LAYOUTS[layout])


def test_silos_of_different_layouts_are_diloco(processes: Nursery, serve: Serve, tmp_path: Path) -> None:
    """FSDP, tensor parallel and pipeline in one round, against one process: Douillard et al. 2023."""
    server, initial = serve("layouts"), initial_of(JOB, tmp_path)
    found, weights = train_together(processes, server, initial, "once")
    jobs = [SiloJob.model_validate(of_layout(number, layout)) for number, layout in enumerate(LAYOUTS)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = diloco(jobs, tmp_path, initial, ROUNDS, lr=0.7, momentum=0.9)
    torch.set_num_threads(threads)
    assert weights == [sorted(counted) for counted in expected.tokens]
    assert_near(found, expected.weights, initial)


@pytest.mark.every_layout
def test_silos_of_different_layouts_give_the_same_bits_again(processes: Nursery, serve: Serve, tmp_path: Path) -> None:
    server, initial = serve("layouts"), initial_of(JOB, tmp_path)
    once, again = (train_together(processes, server, initial, name) for name in ("once", "again"))
    assert once == again


@pytest.mark.parametrize(("overlap", "other"), STREAMING)
def test_fragments_stream_while_steps_go_on(
    processes: Nursery, serve: Serve, tmp_path: Path, overlap: int, other: str
) -> None:
    """Streaming DiLoCo over two layouts, against one process: Douillard et al. 2025, algorithm 2."""
    server, initial = serve("streaming"), initial_of(JOB, tmp_path)
    federation = {"overlap_steps": overlap, **({"mixing": 0.25} if overlap else {})}
    sections = [
        job_of(job={"seed": number}, federation=federation, **LAYOUTS[layout])
        for number, layout in enumerate(("fsdp", other))
    ]
    silos = [
        Silo(processes, f"stream-{number}", server, 2, section, "--max-rounds", "4").start()
        for number, section in enumerate(sections)
    ]
    aggregation = {**OUTER["aggregation"], "fragments": 2}
    run = server.operator.submit(outer_job("streaming", 4, 2, aggregation=aggregation), initial)
    server.operator.finished(run, WAIT_S)
    assert [silo.process.wait() for silo in silos] == [0, 0]

    parts = deal(layout_of(initial), 2).parts
    spans = layout_of(initial).spans
    fragments = [[one.spec.name for one in spans if part.offset <= one.start < part.stop] for part in parts]
    jobs = [SiloJob.model_validate(section) for section in sections]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = streaming(jobs, tmp_path, initial, fragments, 4, lr=0.7, momentum=0.9)
    torch.set_num_threads(threads)
    assert reported_weights(server.operator, run) == [sorted(counted) for counted in expected.tokens]
    assert_near(server.operator.model(run), expected.weights, initial)


def assert_near(
    found: bytes, expected: Mapping[str, npt.NDArray[Any]], initial: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Assert that weights agree within 1e-5 and have moved much farther."""
    flat = np.concatenate([expected[name].reshape(-1) for name in initial])
    start = np.concatenate([value.reshape(-1) for value in initial.values()])
    assert np.abs(flat - start).max() > 1e-2
    np.testing.assert_allclose(np.frombuffer(found, np.float32), flat, rtol=0, atol=1e-5)


def test_a_silo_of_adapters_and_an_edge_client_train_one_model(
    processes: Nursery, serve: Serve, hire: Hire, tmp_path: Path
) -> None:
    """The layout is the contract: only the adapters are sent, and the server does not care who trains them."""
    server = serve("mixed")
    job = job_of(model={"lora": {"rank": 4}}, mesh={"tp": 2})
    initial = initial_of(job, tmp_path)
    assert all("lora" in name for name in initial)
    silo = Silo(processes, "adapters", server, 2, job, "--max-rounds", "1").start()
    hire(server).start("Steady", index=0)
    run = server.operator.submit(outer_job("mixed", 1, 2, optimiser={"name": "fedavg"}), initial)
    server.operator.finished(run, WAIT_S)
    assert reported_weights(server.operator, run) == [sorted([TOKENS, examples_of(0)])]
    assert silo.process.wait() == 0

    theirs = trained(initial, 0, 0)
    whole, mine = TOKENS + examples_of(0), {}
    for name, value in server.operator.arrays(run).items():
        change = (value.astype(np.float64) - initial[name]) * whole
        change -= examples_of(0) * (theirs[name].astype(np.float64) - initial[name])
        mine[name] = change / TOKENS
    steps = np.concatenate([change.reshape(-1) for name, change in mine.items() if name.endswith("_b")])
    assert 0 < np.abs(steps).max() < 2 * STEPS * JOB["optimiser"]["lr"]  # AdamW's: about the learning rate each


def test_a_silo_that_runs_out_of_time_reports_the_steps_that_it_has_made_with_their_tokens(
    processes: Nursery, serve: Serve, hire: Hire, tmp_path: Path
) -> None:
    """The server asks for more steps than time allows, and than the job makes on its own."""
    server, initial = serve("deadline"), initial_of(JOB, tmp_path)
    job = job_of(batch={"global_batch": 32, "micro_batch": 16}, federation={"max_inner_steps": 100_000})
    silo = Silo(processes, "slow", server, 2, job).start()
    hire(server).start("Steady", index=0)
    late: Sections = {"straggler": {"report_window_s": window_s()}, "training": {"inner_steps": 100_000}}
    run = server.operator.submit(outer_job("deadline", 1, 2, optimiser={"name": "fedavg"}, **late), initial)
    server.operator.finished(run, WAIT_S)
    (released,) = [seen for seen in server.operator.rounds(run) if seen.phase == "released"]
    made = silo.event("trained", round=0, attempt=released.attempt)["metrics"]
    assert STEPS < made["steps"] < 100_000
    assert 0.9 * 32 * SEQUENCE * made["steps"] < made["tokens"] <= 32 * SEQUENCE * made["steps"]
    counted = sorted(member.weight for member in released.members if member.status == "reported")
    assert counted == sorted([made["tokens"], examples_of(0)])


MOE: Sections = {"model": {"moe": {"experts": 4, "top_k": 2, "expert_dim": 32}}}
MIXED: Mapping[str, tuple[int, Sections, Sections]] = {
    "moe": (2, MOE, {"mesh": {"ep": 2}}),
    "3-d": (8, {}, {"mesh": {"pp": 2, "tp": 2}, "batch": {"micro_batch": 1}}),
}
"""Ranks, what is added to the job, and what to that of the silo that is cut otherwise."""


@pytest.mark.parametrize("kind", ["moe", pytest.param("3-d", marks=pytest.mark.every_layout)])
def test_a_silo_that_is_cut_otherwise_sends_the_same_update(
    processes: Nursery, serve: Serve, tmp_path: Path, kind: str
) -> None:
    """Expert parallel, or three dimensions, against FSDP on the same data."""
    ranks, common, cut = MIXED[kind]
    plain, other = job_of(**common), job_of(**{**common, **cut})
    server, initial = serve("mixed"), initial_of(plain, tmp_path)

    def train(name: str, size: int, job: Sections) -> npt.NDArray[Any]:
        silo = Silo(processes, name, server, size, job, "--max-rounds", "2").start()
        run = server.operator.submit(outer_job(name, 2, 1), initial)
        server.operator.finished(run, WAIT_S)
        assert silo.process.wait() == 0
        return np.frombuffer(server.operator.model(run), np.float32)

    wanted, found = train("plain", 2, plain), train("cut", ranks, other)
    start = np.concatenate([value.reshape(-1) for value in initial.values()])
    assert np.abs(wanted - start).max() > 1e-2
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
