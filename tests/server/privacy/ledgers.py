"""Private runs as seen by the ledger, without training."""

import dataclasses
from typing import Any

from sqlalchemy import Connection

from atoll.server.privacy import ledger
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Adjacency, Sampling
from atoll.server.stores import Member, NoiseRecord, Release, Report, noise_states, reports, rounds, runs
from atoll.server.stores.models import Model
from tests.server.stores.samples import DIGEST, NOW, attempt, run

FIRST, SECOND = "rfirst", "rsecond"
CLINIC = "clinic"
DELTA = 1e-5


def contract(**changes: Any) -> Contract:
    """Ten rounds over a tenth of the population."""
    return dataclasses.replace(
        Contract(
            population=CLINIC,
            mechanism="gaussian",
            adjacency=Adjacency.ADD_REMOVE,
            accountant="rdp",
            sampling=Sampling.POISSON,
            sample_rate=0.1,
            epsilon=None,
            delta=DELTA,
            noise_multiplier=1.0,
            clip=1.0,
            adaptive=None,
            weight_bound=1,
            divisor_weight=10,
            rounds=10,
        ),
        **changes,
    )


def release_of(run_id: str, version: int, promise: Contract) -> Release:
    made = dataclasses.replace(attempt(version), run_id=run_id, phase="charged")
    charge = ledger.charge_of(
        promise, run_id=run_id, round_number=version, attempt=0, version=version, now=NOW + version
    )
    return Release(
        charge,
        made,
        (),
        Model(run_id, version + 1, version, DIGEST, 10, NOW),
        noise=NoiseRecord(run_id, version + 1, "{}"),
    )


def job_of(population: str) -> str:
    """Return the parts of a job that the ledger reads."""
    return f'[privacy]\npopulation = "{population}"'


def submit(connection: Connection, run_id: str, promise: Contract) -> None:
    runs.add(connection, dataclasses.replace(run(run_id), job_toml=job_of(promise.population)))
    ledger.enrol(connection, promise, NOW)
    noise_states.add(connection, NoiseRecord(run_id, 0, "{}"))


def fill(connection: Connection) -> None:
    """Two ended runs of a population, with three and two releases; the second uses PRV."""
    for run_id, count, promise in ((FIRST, 3, contract()), (SECOND, 2, contract(accountant="prv", epsilon=8.0))):
        ended = dataclasses.replace(
            run(run_id, NOW + len(run_id)),
            name=f"{run_id} digits",
            job_toml=job_of(CLINIC),
            status="finished",
            finished_at=NOW,
        )
        runs.add(connection, ended)
        ledger.enrol(connection, promise, NOW)
        noise_states.add(connection, NoiseRecord(run_id, 0, "{}"))
        for version in range(count):
            assert ledger.record(connection, release_of(run_id, version, promise), promise, version)


def draw(connection: Connection, run_id: str, participant: str, *, drawn: int, counted: int) -> None:
    """Draw a participant for the first rounds of a run, and count it in the first of them."""
    for number in range(drawn):
        rounds.put_members(connection, [Member(run_id, number, 0, participant, "reported")])
    for number in range(counted):
        made = Report(run_id, number, 0, participant, DIGEST, "ab" * 16, 1, "main", NOW, "counted", counted=True)
        reports.record(connection, made)
