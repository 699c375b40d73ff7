"""The server is killed, at any moment: it resumes, nothing acknowledged is lost, and the bits are the same."""

from __future__ import annotations

import re

import psutil
import pytest

from tests.patience import WAIT_S
from tests.system.conftest import Hire, Serve
from tests.system.operators import Operator
from tests.system.participants import examples_of
from tests.system.reference import (
    JOB,
    LARGE_CHUNKS,
    LARGE_JOB,
    LARGE_MODEL,
    MODEL,
    ROUNDS,
    SIZE,
    assert_close,
    averaged,
    shares_of,
)

pytestmark = pytest.mark.system

MOMENTS = (
    "before cohort_drawn:1",
    "after round_prepared:1",
    "before reported:2",  # the upload is durable, its report is not
    "after reported:3",  # the last report is durable, its sender was never told
    "before aggregated:1",  # the next model is on disk, but not recorded
    "after aggregated:1",
    "before charged:1",
    "after charged:1",
    "before published:1",
    "after published:1",
)


def assert_each_counted_once(operator: Operator, run: str) -> None:
    """Every round was released at its first attempt, from one report of each participant."""
    rounds = operator.rounds(run)
    assert [(seen.round, seen.attempt, seen.phase) for seen in rounds] == [(at, 0, "released") for at in range(ROUNDS)]
    for seen in rounds:
        assert [member.status for member in seen.members] == ["reported"] * SIZE
        assert sorted(member.weight for member in seen.members) == [examples_of(index) for index in range(SIZE)]
        assert seen.total_weight == sum(map(examples_of, range(SIZE)))


def test_killed_at_ten_exact_moments_the_run_ends_with_the_same_bits(
    serve: Serve, hire: Hire, reference_model: bytes
) -> None:
    """Each start of the server ends at another moment of the course of a round; the clients see only lost calls."""
    server = serve("mortal")
    run = server.operator.submit(JOB, MODEL)
    crew = hire(server, eager=True)
    clients = [crew.add("Steady", index=index) for index in range(SIZE)]
    server.kill()
    server.start(dies=MOMENTS[0])
    for client in clients:
        client.start()
    server.died()
    for moment in MOMENTS[1:]:
        server.start(dies=moment)
        server.died()
        server.went_on(moment)
    server.start()
    server.operator.finished(run)
    server.went_on("the run's end")
    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)
    assert all(client.process.running for client in clients)


def test_killed_in_mid_round_it_resumes_on_the_same_port_with_what_was_acknowledged(
    serve: Serve, hire: Hire, reference_model: bytes
) -> None:
    server, held_round = serve("killed"), 1
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2, rounds=[held_round])
    run = server.operator.submit(JOB, MODEL)
    at_work.wait("held", round=held_round)
    for client in done:
        client.wait("reported", round=held_round)

    server.kill()
    for client in (*done, at_work):
        client.wait("disconnected")
    server.start()

    # The two that were told "counted" do not report again; the third goes on with the work that it had begun.
    for client in (*done, at_work):
        client.wait("connected", count=2)
    server.went_on("all participants were back")
    seen = server.operator.until(run, lambda seen: seen.round.reported == 2, "two reports in")
    assert (seen.round.round, seen.round.attempt, seen.round.phase) == (held_round, 0, "open")
    at_work.go()
    server.operator.finished(run)

    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)
    for client in done:
        assert len(client.events("trained", round=held_round)) == 1
    assert len(at_work.events("invited", round=held_round)) == 1


def test_killed_while_an_upload_is_under_way_the_upload_goes_on(serve: Serve, hire: Hire) -> None:
    """Half an update lies in the spool when the server dies; the client sends the rest to its successor."""
    server = serve("half-way")
    crew = hire(server)
    others = [crew.start("Held", index=index) for index in range(2)]
    uploading = crew.start("HeldUpload", "--log-level", "info", index=2)
    run = server.operator.submit(LARGE_JOB, LARGE_MODEL)
    uploading.wait("held")
    for client in others:  # whole updates after the half one: by then the server has taken some of that
        client.wait("held")
        client.go()
        client.wait("reported")
    server.kill()
    server.start()
    for client in crew.clients:
        client.wait("connected", count=2)
    server.went_on("all participants were back")
    server.operator.finished(run)
    uploading.go()

    again = re.findall(rf"upload resumes: (\d+) of {LARGE_CHUNKS} chunks to send", uploading.process.log)
    assert 1 <= min(map(int, again)) < LARGE_CHUNKS
    assert len(uploading.events("trained")) == 1  # what was computed is sent, not computed again
    undisturbed = server.operator.submit(LARGE_JOB, LARGE_MODEL)
    for client in crew.clients:
        client.wait("held", run=undisturbed)
        client.go()
    server.operator.finished(undisturbed)
    assert server.operator.model(run) == server.operator.model(undisturbed)


def test_killed_server_takes_its_workers_along(serve: Serve, hire: Hire, reference_model: bytes) -> None:
    """No worker outlives its server, and the partial sums lost with the workers are folded again."""
    server = serve("workers", "--workers", "2")
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2)
    run = server.operator.submit(JOB, MODEL)
    at_work.wait("held")
    for client in done:
        client.wait("reported", round=0)
    workers = server.workers
    assert len(workers) == 2
    server.kill()
    gone, alive = psutil.wait_procs(workers, timeout=WAIT_S)
    assert (len(gone), alive) == (2, [])

    server.start()
    for client in crew.clients:
        client.wait("connected", count=2)
    server.went_on("all participants were back")
    at_work.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)


def test_killed_worker_is_started_again_and_nothing_is_lost(serve: Serve, hire: Hire, reference_model: bytes) -> None:
    server = serve("workers", "--workers", "2")
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2)
    run = server.operator.submit(JOB, MODEL)
    at_work.wait("held")
    for client in done:
        client.wait("reported", round=0)
    for worker in server.workers:
        worker.kill()
    at_work.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)


def test_stopped_in_good_order_it_lets_participants_come_back(serve: Serve, hire: Hire) -> None:
    """SIGTERM: every participant is told when to return, and working ones do not count as gone while calls drain."""
    server = serve("stopped", "--silence-s", "0", "--drain-s", "1")
    crew = hire(server)
    done = crew.steady(2)
    at_work = crew.start("HeldUpload", index=2)
    run = server.operator.submit(LARGE_JOB.replace("quorum = 3", "quorum = 2"), LARGE_MODEL)
    at_work.wait("held")
    for client in done:
        client.wait("reported")
    assert server.stop() == 0
    for client in crew.clients:
        assert "the server is stopping" in client.wait("disconnected")["reason"]
    server.start()
    server.operator.finished(run)
    for client in crew.clients:
        client.wait("connected", count=2)
    (released,) = server.operator.rounds(run)
    assert [member.status for member in released.members] == ["reported"] * SIZE
    assert_close(server.operator.arrays(run), averaged(LARGE_MODEL, shares_of(range(SIZE)), 0))
