"""A simulation is the deployment: the same participants and the same job give the same model, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atoll.client import Participant
from atoll.server.jobs import parse_job
from atoll.simulation import Federation
from tests.system.clients import Client
from tests.system.conftest import Hire, Serve
from tests.system.operators import Section, job_toml
from tests.system.participants import Judging
from tests.system.reference import MODEL, SIZE
from tests.system.servers import Server
from tests.system.test_private_kills import MECHANISMS, STEADY, private_job

pytestmark = pytest.mark.system

ROUNDS = 3
SECRET = "07" * 32
JOBS: dict[str, dict[str, Section]] = {
    "fedavg": {},
    "fedadam": {"optimiser": {"name": "fedadam", "lr": 0.05}},
    "fedavgm": {"optimiser": {"name": "fedavgm", "momentum": 0.5}},
    "int8": {"aggregation": {"encoding": "int8"}, "optimiser": {"name": "fedadam", "lr": 0.05}},
    "fragments": {"aggregation": {"fragments": 2}, "iterate_averaging": {"decay": 0.5}},
}


def everyone(name: str) -> str:
    """A job whose rounds have every participant."""
    return job_toml(
        job={"name": name, "rounds": ROUNDS},
        cohort={"size": SIZE, "quorum": SIZE},
        evaluation={"before_training": True, "final": True},
        **JOBS[name],
    )


def maker(clients: list[Client]) -> Callable[[str], Participant]:
    """Makes the participants of the client processes from their server-assigned ids."""
    numbers = {client.participant: number for number, client in enumerate(clients)}
    return lambda name: Judging(numbers[name])


def simulated(toml: str, clients: list[Client], workers: int) -> bytes:
    names = sorted(client.participant for client in clients)
    federation = Federation(participants=maker(clients), population=names)
    result = federation.run(parse_job(toml), initial=MODEL, strict=True, workers=workers)
    return b"".join(array.tobytes() for array in result.model.values())


def test_a_simulation_gives_the_bits_of_a_deployment(shared_server: Server, hire: Hire) -> None:
    """In this process, and with participants in two others."""
    clients = hire(shared_server).steady(SIZE, "Judging")
    operator = shared_server.operator
    for name in JOBS:
        run = operator.submit(everyone(name), MODEL)
        operator.finished(run)
        deployed = operator.model(run)
        for workers in (0, 2):
            assert simulated(everyone(name), clients, workers) == deployed, (name, workers)


def test_private_releases_of_the_same_secret_are_the_same_bits(
    serve: Serve, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is bound to the reporters' ids and updates, so the population has the deployment's ids."""
    server = serve("private")
    server.kill()
    server.env["ATOLL_NOISE_SECRET"] = SECRET
    server.start(dies=STEADY)
    clients = hire(server).steady(SIZE, "Judging")
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: bytes.fromhex(SECRET))
    for mechanism in MECHANISMS:
        run = server.operator.submit(private_job(mechanism), MODEL)
        server.operator.finished(run)
        assert simulated(private_job(mechanism), clients, 0) == server.operator.model(run), mechanism
