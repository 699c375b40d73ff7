"""An operator's commands, pause, resume and cancel, and a job's samplers."""

from __future__ import annotations

import grpc
import pytest

from tests.system.conftest import Hire
from tests.system.operators import CANCELLED, FINISHED, PAUSED, RUNNING, Operator, job_toml
from tests.system.reference import JOB, MODEL, ROUNDS, SIZE
from tests.system.servers import Server

pytestmark = pytest.mark.system

POPULATION = 4


def test_paused_it_finishes_the_round_and_resumed_it_ends_with_the_same_bits(
    shared_server: Server, hire: Hire, reference_model: bytes
) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    held = crew.start("Held", index=2, rounds=[1])
    run = operator.submit(JOB, MODEL)
    held.wait("held")
    operator.pause(run)
    summary = operator.show(run).summary
    assert (summary.status, summary.reason) == (RUNNING, "pauses when this round is done")
    held.go()
    paused = operator.until(run, lambda seen: seen.summary.status == PAUSED, "paused")
    assert (paused.summary.rounds_released, paused.round.phase) == (2, "released")
    operator.resume(run)
    operator.finished(run)
    assert operator.model(run) == reference_model
    assert [seen.reported for seen in operator.rounds(run)] == [SIZE] * ROUNDS
    assert not [event for client in crew.clients for event in client.events("invited", attempt=1)]


def test_cancelled_in_mid_round_everyone_is_told_and_the_last_release_stays(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    held = crew.start("Held", index=2, rounds=[1])
    run = operator.submit(JOB, MODEL)
    held.wait("held")
    operator.cancel(run, "the data were mislabelled")
    stop, why = held.wait("told_to_stop"), "the run has ended (cancelled): the data were mislabelled"
    assert (stop["should_stop"], stop["reason"]) == (True, why)
    assert held.wait("stopped")["reason"] == why
    summary = operator.ended(run)
    assert (summary.status, summary.reason) == (CANCELLED, "the data were mislabelled")
    assert summary.rounds_released == 1
    assert operator.model(run) == operator.model(run, 1) != operator.model(run, 0)
    last = operator.rounds(run)[-1]
    assert (last.round, last.phase) == (1, "abandoned")
    assert {member.status for member in last.members} == {"stopped"}
    with pytest.raises(grpc.RpcError) as refused:
        operator.cancel(run, "again")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"run {run} has cancelled already" in str(refused.value.details())

    again = operator.submit(job_toml(job={"name": "after", "rounds": 1}, cohort={"size": SIZE}), MODEL)
    operator.finished(again)  # the participants are free for the next run


def cohorts(operator: Operator, run: str) -> list[frozenset[str]]:
    """Return the invited participants of each round."""
    return [frozenset(member.participant for member in seen.members) for seen in operator.rounds(run)]


def sampled(operator: Operator, sampler: str, rounds: int, **cohort: object) -> list[frozenset[str]]:
    """The cohorts of a run with this sampler, seed 5, over everyone."""
    toml = job_toml(
        job={"name": sampler, "rounds": rounds},
        cohort={"sampler": sampler, "seed": 5, "min_available": POPULATION, **cohort},
        straggler={"report_window_s": 60, "retry_delay_s": 0.0},
    )
    run = operator.submit(toml, MODEL)
    summary = operator.ended(run)
    assert (summary.status, summary.rounds_released) == (FINISHED, rounds), summary
    assert all(seen.reported == seen.cohort for seen in operator.rounds(run))
    return cohorts(operator, run)


def test_samplers_draw_as_their_jobs_say(shared_server: Server, hire: Hire) -> None:
    """One population, one run for each sampler; the same seed draws the same cohorts from the same population."""
    operator, crew = shared_server.operator, hire(shared_server)
    everyone = frozenset(client.participant for client in crew.steady(POPULATION))

    uniform = sampled(operator, "uniform", 5, size=2)
    assert [len(drawn) for drawn in uniform] == [2] * 5
    assert len(set(uniform)) > 1
    assert sampled(operator, "uniform", 5, size=2) == uniform

    weighted = sampled(operator, "weighted", 3, size=2)
    assert [len(drawn) for drawn in weighted] == [2] * 3
    assert sampled(operator, "weighted", 3, size=2) == weighted

    poisson = sampled(operator, "poisson", 8, size=2, quorum=0)
    assert len({len(drawn) for drawn in poisson}) > 1  # each by itself: sizes differ
    assert sampled(operator, "poisson", 8, size=2, quorum=0) == poisson

    turns = sampled(operator, "least_recent", 4, size=2)
    assert turns[0] | turns[1] == everyone
    assert (turns[2], turns[3]) == (turns[0], turns[1])

    likely = sampled(operator, "availability", 3, size=2)
    assert [len(drawn) for drawn in likely] == [2] * 3
    assert all(drawn <= everyone for drawn in uniform + weighted + poisson + turns + likely)
