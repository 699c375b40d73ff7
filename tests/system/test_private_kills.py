"""A server that makes private releases is killed repeatedly: each is charged once, and no sum gets two noises."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from atoll.server.privacy import ledger
from atoll.server.stores import Store, charges
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.reference import MODEL, SIZE, assert_undisturbed
from tests.system.servers import Server
from tests.system.test_kills import fatal_moments, has_ended

pytestmark = pytest.mark.system

ROUNDS = 3
MECHANISMS = ("gaussian", "tree", "banded", "blt")
STEADY = "nothing:1"
"""A server whose noise begins with the secret below, and that does not die."""


def private_job(mechanism: str) -> str:
    """Everyone is in every round, since noise depends on who reported, and two runs must be equal."""
    return job_toml(
        job={"name": "private", "rounds": ROUNDS},
        cohort={"size": SIZE, "quorum": SIZE, "sampler": "least_recent"},
        straggler={"report_window_s": 300, "retry_delay_s": 0.5},
        aggregation={"weighting": "uniform"},
        optimiser={"name": "fedadam", "lr": 0.05},
        privacy={
            "population": "people",
            "delta": 1e-5,
            "noise_multiplier": 2.0,
            "clip": 1.0,
            "mechanism": mechanism,
            "max_participations": ROUNDS,
            "min_separation": 1,
        },
    )


def charged(server: Server, run: str) -> list[tuple[int, int]]:
    """Round and attempt of each charge of the run, from the data of a server that is down."""

    async def read() -> list[tuple[int, int]]:
        with contextlib.closing(Store.open(server.data)) as store:
            assert await store.reader.run(ledger.flaws) == {}
            return [(one.round, one.attempt) for one in await store.reader.run(charges.listed, run)]

    return asyncio.run(read())


def test_killed_at_random_moments_each_release_is_charged_once_and_has_the_noise_of_an_undisturbed_run(
    serve: Serve, hire: Hire, fault_seed: int
) -> None:
    server = serve("mortal")
    server.kill()
    server.env["ATOLL_NOISE_SECRET"] = "07" * 32
    server.start(dies=STEADY)
    clients = hire(server, eager=True).steady(SIZE)
    for client in clients:
        client.wait("connected")
    toml = private_job(MECHANISMS[fault_seed % len(MECHANISMS)])
    run = server.operator.submit(toml, MODEL)
    server.kill()
    for moment in fatal_moments(fault_seed):
        if has_ended(server.start(dies=moment), run):
            server.kill()
        server.died()
    server.start(dies=STEADY)
    server.operator.finished(run)
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    again = server.operator.submit(toml, MODEL)
    server.operator.finished(again)
    assert server.operator.model(run) == server.operator.model(again), server.deaths
    server.kill()
    assert charged(server, run) == charged(server, again) == [(number, 0) for number in range(ROUNDS)]
