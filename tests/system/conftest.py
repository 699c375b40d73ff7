"""Fixtures of the system tests: one server, shared by the tests that do not damage it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.object_storage import object_store, s3
from tests.postgresql import database_server
from tests.system.clients import Crew, crew
from tests.system.operators import Arrays
from tests.system.processes import Nursery, nursery
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, MODEL, SIZE
from tests.system.servers import Server, serving

__all__ = ["database_server", "object_store", "s3"]

Serve = Callable[..., Server]
Hire = Callable[..., Crew]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that every test may use and none may stop; disconnected participants count as gone after 1 s."""
    with (
        nursery(tmp_path_factory.mktemp("shared")) as processes,
        serving(processes, "shared", "--silence-s", "1", "--evaluator", "norm=participants:norm") as server,
    ):
        yield server


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Nursery]:
    """Processes that end with the test."""
    with nursery(tmp_path / "processes") as made:
        yield made


@pytest.fixture
def serve(processes: Nursery) -> Iterator[Serve]:
    """Starts servers for one test."""
    with ExitStack() as stack:

        def start(name: str, *options: str, insecure: bool = False) -> Server:
            return stack.enter_context(serving(processes, name, *options, insecure=insecure))

        yield start


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Hire]:
    """Makes crews: clients that end with the test."""
    with ExitStack() as stack:

        def make(server: Server, *, eager: bool = False) -> Crew:
            return stack.enter_context(crew(server, tmp_path / f"crew-{server.name}", eager=eager))

        yield make


@pytest.fixture(scope="session")
def reference_model(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of an undisturbed ``reference.JOB`` from ``reference.MODEL``."""
    return undisturbed(shared_server, tmp_path_factory.mktemp("reference"), JOB, MODEL)


@pytest.fixture(scope="session")
def killed_undisturbed(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of an undisturbed ``reference.KILLED_JOB`` from ``reference.KILLED_MODEL``."""
    return undisturbed(shared_server, tmp_path_factory.mktemp("undisturbed"), KILLED_JOB, KILLED_MODEL)


def undisturbed(server: Server, folder: Path, job: str, model: Arrays) -> bytes:
    """The final model of a run that nothing disturbs."""
    with crew(server, folder) as people:
        people.steady(SIZE)
        run = server.operator.submit(job, model)
        server.operator.finished(run)
        return server.operator.model(run)
