"""Processes that are stopped (SIGSTOP) and continue later, participants and the server; and a server that moves."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.patience import WAIT_S, kept, window_s
from tests.ports import free_ports
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.reference import (
    JOB,
    LARGE_JOB,
    LARGE_MODEL,
    MODEL,
    ROUNDS,
    SIZE,
    assert_close,
    assert_undisturbed,
    averaged,
    shares_of,
)

pytestmark = pytest.mark.system

STILL_S = 3.0
"""How long a server stands still: longer than its patience with participants that are not connected (1 s)."""
PATIENT = ("--silence-s", str(WAIT_S))
"""A participant that stands still answers no pings: on a busy machine it may lose its connection before it goes on."""


def test_a_participant_that_stands_still_past_the_deadline_is_timed_out_and_goes_on_with_the_next_round(
    serve: Serve, hire: Hire
) -> None:
    server = serve("deadline", *PATIENT)
    operator, crew = server.operator, hire(server)
    crew.steady(2)
    still = crew.start("Held", index=2, rounds=[0], obey=False)
    window = window_s()
    toml = job_toml(
        job={"name": "still", "rounds": 2},
        cohort={"size": 3, "quorum": 2, "min_available": 3},
        straggler={"report_window_s": window},
    )
    run = operator.submit(toml, MODEL)
    still.wait("held")
    still.process.send(signal.SIGSTOP)
    operator.until(run, lambda seen: seen.summary.rounds_released == 1, "past the deadline")
    still.process.send(signal.SIGCONT)
    still.wait("invited", round=1)
    still.go()
    operator.finished(run)
    first, second = operator.rounds(run)
    (member,) = [m for m in first.members if m.participant == still.participant]
    assert (member.status, member.detail) == ("timed_out", "the deadline has passed")
    assert first.closed_at - first.opened_at >= window
    assert kept(first.closed_at - first.opened_at, 3 * window)
    assert [m.status for m in second.members] == ["reported"] * 3
    assert not still.events("reported", round=0)
    assert_close(operator.arrays(run), averaged(averaged(MODEL, shares_of([0, 1]), 0), shares_of([0, 1, 2]), 1))


def test_a_participant_that_stands_still_in_its_upload_counts_if_it_goes_on_in_time(serve: Serve, hire: Hire) -> None:
    """The update that it was sending, not another one."""
    server = serve("upload", *PATIENT)
    operator, crew = server.operator, hire(server)
    crew.steady(2)
    still = crew.start("HeldUpload", index=2)
    run = operator.submit(LARGE_JOB, LARGE_MODEL)
    still.wait("held")
    still.process.send(signal.SIGSTOP)
    operator.until(run, lambda seen: seen.round.reported == 2, "short of one")
    still.process.send(signal.SIGCONT)
    still.go()
    operator.finished(run)
    assert len(still.events("trained")) == 1
    assert_close(operator.arrays(run), averaged(LARGE_MODEL, shares_of(range(SIZE)), 0))


def test_a_server_that_stands_still_goes_on_where_it_was(serve: Serve, hire: Hire, reference_model: bytes) -> None:
    """No participant is given up because of time that the server itself lost."""
    server = serve("still", "--silence-s", "1")
    crew = hire(server)
    held = crew.start("Held", index=0, rounds=[1])
    clients = [held, *(crew.start("Steady", index=index) for index in (1, 2))]
    run = server.operator.submit(JOB, MODEL)
    held.wait("held")
    server.process.send(signal.SIGSTOP)
    held.go()  # its upload meets a server that does not move
    threading.Event().wait(STILL_S)
    server.process.send(signal.SIGCONT)
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_undisturbed(server.operator, run, clients, ROUNDS)


def test_a_server_that_moves_to_another_port_keeps_its_runs_and_participants(
    serve: Serve, hire: Hire, reference_model: bytes
) -> None:
    """The operator's credential is updated automatically; participants are started with the new address."""
    server = serve("moving")
    crew = hire(server)
    clients = [crew.start("Held", index=0, rounds=[1]), crew.start("Steady", index=1), crew.start("Steady", index=2)]
    run = server.operator.submit(JOB, MODEL)
    clients[0].wait("held")
    before = server.address
    server.kill()
    for client in clients:
        client.process.kill()
    server.port = free_ports()
    server.start()
    assert server.address != before
    for client in clients:
        client.options = ("--server", server.address)
        client.start()
    clients[0].wait("held")
    clients[0].go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model


def test_workers_that_stand_still_are_replaced_and_nothing_is_lost(
    serve: Serve, hire: Hire, reference_model: bytes
) -> None:
    """They do not answer, so they are replaced, and their sums are folded again."""
    server = serve("workers", "--workers", "2")
    crew = hire(server)
    held = crew.start("Held", index=0)
    clients = [held, *(crew.start("Steady", index=index) for index in (1, 2))]
    run = server.operator.submit(JOB, MODEL)
    held.wait("held")
    for client in clients[1:]:
        client.wait("reported", round=0)
    for worker in server.workers:
        worker.suspend()
    held.go()
    server.operator.finished(run, timeout_s=WAIT_S)
    assert server.operator.model(run) == reference_model
    assert_undisturbed(server.operator, run, clients, ROUNDS)
    assert server.process.log.count("did not answer for") >= 2
