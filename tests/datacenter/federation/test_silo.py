"""A silo of two ranks against a scripted server: what it fetches, trains, sends and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import Limits
from atoll.client._connection.endpoint import Endpoint
from atoll.client._privacy.clipping import MARGIN
from atoll.client._privacy.ledger import read_account
from atoll.client._privacy.promises import path_of, read_promises
from atoll.client._privacy.sample_ledger import ledger_path
from atoll.client._session.session import Session
from atoll.client._session.work import MakeWork
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.federation.journal import NAME, Journal
from atoll.datacenter.federation.orders import Orders, open_store
from atoll.datacenter.federation.residuals import FOLDER
from atoll.datacenter.federation.session_thread import SessionThread, SiloParticipant
from atoll.datacenter.federation.silo import Silo
from atoll.datacenter.federation.spending import Spending
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.privacy import Budget
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from atoll.formats.safetensors import read_header
from atoll.wire.encoding import Encoding, as_received
from atoll.wire.privacy_terms import terms_to_proto
from atoll.wire.v1 import participation_pb2 as part
from atoll.wire.views import tensor_views
from tests.client.harness import FAST, Federation
from tests.datacenter.ranks import RankError, run_ranks
from tests.datacenter.training import small
from tests.patience import WAIT_S
from tests.system.diloco import Worker
from tests.wire.test_privacy_terms import TERMS

RANKS, STEPS = 2, 3
ENDLESS = 1 << 19
FEDERATION = {"inner_steps": STEPS, "max_inner_steps": ENDLESS}
JOB = small(
    model={"layers": 1, "vocab": 256},
    data_parallel={"method": "zero3"},
    schedule={"decay": "none"},
    federation=FEDERATION,
)
PRIVATE = JOB | {
    "model": {"kind": "vision", "vocab": 10, "layers": 1, "dim": 32, "heads": 4},
    "data": {"source": "digits"},
    "batch": {"global_batch": 100, "micro_batch": 50},
    "data_parallel": {"method": "ddp"},
    "checkpoint": {"folder": "checkpoints", "every_steps": 2},
}
RATE, NOISE, DELTA = 100 / 1572, 1.0, 1e-5
"""Budget of the private job."""
Weights = dict[str, npt.NDArray[Any]]
Message = TypeVar("Message")


class Failing(Unwatched):
    """Make the step with this number fail."""

    def __init__(self, step: int) -> None:
        self._step = step

    def enter(self, step: int, phase: str) -> None:
        if (step, phase) == (self._step, "data"):
            raise ZeroDivisionError("as the test wants it")


def take_part(
    address: str, folder: str, rounds: int, overlap: int = 0, fails: int = -1, privacy: dict[str, Any] | None = None
) -> tuple[int, int]:
    """Run a rank, and return its number of steps and of rounds reported."""
    job = SiloJob.model_validate(
        (JOB if privacy is None else PRIVATE | {"privacy": privacy})
        | {"federation": FEDERATION | {"overlap_steps": overlap}}
    )
    with join_world(WAIT_S) as world, ExitStack() as stack:
        trainer = stack.enter_context(open_trainer(job, Path(folder), world, Failing(fails), console=False))
        endpoint, session_thread, spending = Endpoint(address, None, "p1"), None, None
        if world.is_first:
            if trainer.mechanism is not None:
                spending = Spending.of(job, trainer.mechanism.budget, Path(folder), Path(folder))

            def session(make_work: MakeWork) -> Session:
                silo = SiloParticipant(9, spending)
                return Session(silo, endpoint, Path(folder), limits=FAST, max_rounds=rounds, make_work=make_work)

            kept = trainer.checkpoints.folder
            journal = Journal(None if kept is None else kept / FOLDER / NAME)
            session_thread = stack.enter_context(SessionThread(session, journal))
        orders = Orders(world, open_store("federation"), lambda: False)
        Silo(
            trainer, spec_of(job.model), orders, session_thread, lambda: endpoint, Limits(), Path(folder), spending
        ).run()
        return trainer.state.step, 0 if session_thread is None else session_thread.summary().reported


def initial_of(sections: dict[str, Any], folder: Path) -> Weights:
    """Initial weights of a job."""
    path = folder / "initial.safetensors"
    write_initial(SiloJob.model_validate(sections), path)
    layout, start = read_header(path)
    return dict(tensor_views(layout, memoryview(path.read_bytes())[start:]))


@pytest.fixture
def initial(tmp_path: Path) -> Weights:
    """Initial weights of the job."""
    return initial_of(JOB, tmp_path)


@pytest.fixture
async def server(initial: Weights) -> AsyncIterator[Federation]:
    """Serves the job's initial weights in small chunks."""
    async with Federation(initial) as made:
        yield made


def start(server: Federation, folder: Path, rounds: int, *more: Any) -> asyncio.Task[list[Any]]:
    """Run the silo until this many rounds are over; return how its ranks ended. ``more``: passed to ``take_part``."""
    arguments = (server.address, str(folder), rounds, *more)
    return asyncio.create_task(asyncio.to_thread(run_ranks, take_part, RANKS, *arguments))


async def soon(queue: asyncio.Queue[Message]) -> Message:
    """Return the next event; ranks may have to start first."""
    async with asyncio.timeout(WAIT_S):
        return await queue.get()


async def accepted(server: Federation) -> None:
    assert (await soon(server.replies)).verdict == part.TaskReply.VERDICT_ACCEPTED


async def failed(server: Federation) -> str:
    """Return why the round that was just accepted failed."""
    await accepted(server)
    reply = await soon(server.replies)
    assert reply.verdict == part.TaskReply.VERDICT_FAILED
    return reply.reason


async def test_rounds_go_through_what_a_network_does(server: Federation, initial: Weights, tmp_path: Path) -> None:
    """Broken connections, flipped bits, lost chunks, a lost answer: each update is still local - global."""
    worker = Worker.of(SiloJob.model_validate(JOB), tmp_path)
    silo = start(server, tmp_path, 4)
    await soon(server.hellos)
    server.faults.flip_download, server.faults.break_download_after = [3, 7], [2]
    server.faults.break_upload_after = [4]
    server.invite(0, max_weight=10_000)
    report = await soon(server.reports)
    expected, tokens = worker.trained(initial)
    np.testing.assert_allclose(server.update_of(report), flat(expected), atol=1e-6)
    assert (report.weight, report.partial, report.metrics["steps"]) == (tokens, False, STEPS)
    assert len(server.upload_streams) == 3

    weights = {name: value + np.float32(0.01) for name, value in initial.items()}
    server.set_model(weights)
    server.faults.lose_chunks, server.faults.lose_report_ack = 3, 1
    server.invite(1, encoding=Encoding.BFLOAT16)
    report = await soon(server.reports)
    expected, _ = worker.trained(weights)
    np.testing.assert_allclose(server.update_of(report), flat(expected), atol=1e-4)
    assert report.weight == 100, "the server's bound"
    lost = flat(expected) - as_received(flat(expected), Encoding.BFLOAT16)

    downloads = len(server.download_starts)
    server.invite(2, encoding=Encoding.BFLOAT16)
    report = await soon(server.reports)
    again, _ = worker.trained(weights)
    rounded = as_received(flat(again) + lost, Encoding.BFLOAT16)
    assert np.mean(server.update_of(report) == rounded) > 0.95, "with what was rounded off before"
    assert len(server.download_starts) == downloads, "the model is the same: nothing is fetched"

    server.invite(3, privacy=terms_to_proto(replace(TERMS, clip_norm=1e-3)))
    report = await soon(server.reports)
    long, _ = worker.trained(weights)
    factor = 1e-3 * MARGIN / float(np.linalg.norm(flat(long)))
    np.testing.assert_allclose(server.update_of(report), factor * flat(long), atol=1e-6 * factor)
    assert np.linalg.norm(server.update_of(report)) == pytest.approx(1e-3 * MARGIN, rel=1e-3), "of both ranks together"
    assert not report.metrics
    record = read_promises(path_of(tmp_path))
    assert record is not None
    assert [(one.run, one.epsilon) for one in record.promises] == [("r1", TERMS.epsilon)]
    assert await silo == [(4 * STEPS, 4), (4 * STEPS, 0)]


def flat(update: Weights) -> npt.NDArray[np.float32]:
    return np.concatenate([value.reshape(-1) for value in update.values()])


async def test_what_it_cannot_do_is_refused_and_it_goes_on(server: Federation, tmp_path: Path) -> None:
    silo = start(server, tmp_path, 5)
    await soon(server.hellos)
    server.invite(0, settings={"inner_steps": "many"})
    assert "inner_steps" in await failed(server)
    server.invite(1, settings={"inner_steps": 0})
    assert "asks for 0 inner steps" in await failed(server)
    layout = server.layout
    server.layout = type(layout)(layout.tensors[1:])
    server.invite(2)
    assert f"{layout.tensors[0].name!r} is not in the federation's model" in await failed(server)
    server.layout = layout
    server.invite(3, max_abs=2.0**-24)
    assert await failed(server) == "rank 0: UpdateError (its text stays in the participant's log)"
    server.invite(4)
    await accepted(server)
    assert (await soon(server.reports)).metrics["steps"] == STEPS
    assert [steps for steps, _ in await silo] == [2 * STEPS] * RANKS


async def test_it_stops_when_it_is_told_to_and_when_time_is_up(server: Federation, tmp_path: Path) -> None:
    """A round is dropped at once if its result is not wanted, else reported as partial with the weight of its steps."""
    silo = start(server, tmp_path, 2)
    await soon(server.hellos)
    server.invite(0, settings={"inner_steps": ENDLESS})
    await accepted(server)
    server.stop(0)
    server.invite(1, settings={"inner_steps": ENDLESS}, max_weight=1 << 30)
    await accepted(server)
    server.stop(1, late=True)
    report = await soon(server.reports)
    assert_partial(report.partial, report.metrics, report.weight)
    server.invite(2, settings={"inner_steps": ENDLESS}, max_weight=1 << 30, remaining_s=3.0)
    await accepted(server)
    report = await soon(server.reports)
    assert_partial(report.partial, report.metrics, report.weight)
    assert report.metrics["steps"] > 1
    assert [reported for _, reported in await silo] == [2, 0]
    assert server.reports.empty()


async def test_a_step_that_fails_beside_an_exchange_ends_the_rank(server: Federation, tmp_path: Path) -> None:
    """This holds although the exchange waits for a next round that never comes."""
    silo = start(server, tmp_path, 2, 1, STEPS + 1)
    await soon(server.hellos)
    server.invite(0)
    await accepted(server)
    with pytest.raises(RankError, match="as the test wants it"):
        await asyncio.wait_for(silo, WAIT_S)


def spent(steps: int) -> float:
    """Epsilon by a privacy filter, which reserves half of delta for steps of another kind."""
    return Budget(NOISE, RATE, DELTA / 2, "rdp").epsilon(steps)


async def test_private_steps_are_charged_to_the_silos_own_ledger(tmp_path: Path) -> None:
    """Steps are charged before they run, across restarts, up to the limit; steps that did not run are refunded."""
    limit = spent(3 * STEPS) + 1e-6
    terms = {"noise_multiplier": NOISE, "delta": DELTA, "accountant": "rdp", "limit": limit, "data": "digits"}
    ledger = ledger_path(tmp_path, "digits")
    async with Federation(initial_of(PRIVATE, tmp_path)) as server:
        silo = start(server, tmp_path, 3, 0, -1, terms)
        await soon(server.hellos)
        server.invite(0, max_weight=10_000)
        report = await soon(server.reports)
        assert report.metrics == {"steps": STEPS}, "neither losses, nor how many were sampled"
        assert report.weight == STEPS * 100, "independent of the sample"
        found = read_account(ledger)
        assert found is not None
        assert (found.unit, found.rounds) == ("sample", 1)
        assert found.epsilon == pytest.approx(spent(STEPS))

        server.invite(1, settings={"inner_steps": 4 * STEPS})
        declined = await soon(server.replies)
        while declined.verdict == part.TaskReply.VERDICT_ACCEPTED:
            declined = await soon(server.replies)
        assert declined.verdict == part.TaskReply.VERDICT_DECLINED
        assert f"of epsilon {limit:g}" in declined.reason
        server.invite(2)
        assert (await soon(server.reports)).metrics["steps"] == STEPS
        assert await silo == [(2 * STEPS, 2), (2 * STEPS, 0)]

        again = start(server, tmp_path, 1, 0, -1, terms)
        await soon(server.hellos)
        server.invite(3)
        assert (await soon(server.reports)).metrics["steps"] == STEPS
        assert await again == [(3 * STEPS, 1), (3 * STEPS, 0)]
    found = read_account(ledger)
    assert found is not None
    assert found.rounds == 3
    assert found.epsilon == pytest.approx(spent(3 * STEPS))
    assert [entry.release.count for entry in found.entries] == [3 * STEPS]


async def test_private_steps_that_time_did_not_allow_are_not_charged(tmp_path: Path) -> None:
    terms = {"noise_multiplier": NOISE, "delta": DELTA, "accountant": "rdp", "limit": 1e6}
    async with Federation(initial_of(PRIVATE, tmp_path)) as server:
        silo = start(server, tmp_path, 1, 0, -1, terms)
        await soon(server.hellos)
        server.invite(0, settings={"inner_steps": ENDLESS}, max_weight=1 << 30)
        await accepted(server)
        server.stop(0, late=True)
        report = await soon(server.reports)
        assert [reported for _, reported in await silo] == [1, 0]
    found = read_account(ledger_path(tmp_path, "data"))
    assert found is not None
    assert 0 < report.metrics["steps"] < ENDLESS
    assert [entry.release.count for entry in found.entries] == [report.metrics["steps"]]


def assert_partial(partial: bool, metrics: Any, weight: int) -> None:
    assert partial
    assert 0 < metrics["steps"] < ENDLESS
    assert weight == metrics["tokens"]
    batch = JOB["batch"]["global_batch"] * JOB["batch"]["sequence"]
    assert 0.9 * batch < weight / metrics["steps"] <= batch
