"""Participants that die, are slow, fail or refuse: the round continues, and each reason is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.wire.v1 import control_pb2
from tests.patience import window_s
from tests.system.clients import Client
from tests.system.conftest import Hire
from tests.system.operators import FAILED, Operator, job_toml
from tests.system.participants import examples_of
from tests.system.proxy import Proxy
from tests.system.reference import LARGE_JOB, LARGE_MODEL, MODEL, assert_close, averaged, shares_of
from tests.system.servers import Server

pytestmark = pytest.mark.system

"""The report window where a deadline must pass: long enough for those who report at once, on a busy machine too."""


def fates(seen: control_pb2.RoundSummary, *clients: Client) -> list[tuple[str, str]]:
    """Status and detail of each client in a round."""
    found = {member.participant: (member.status, member.detail) for member in seen.members}
    return [found[client.participant] for client in clients]


def assert_released_from(operator: Operator, run: str, round_: int, indices: list[int]) -> None:
    """The first attempt at the first round was released, as the mean of exactly these participants."""
    seen = next(seen for seen in operator.rounds(run) if seen.round == round_)
    assert (seen.phase, seen.attempt, seen.reported) == ("released", 0, len(indices))
    assert seen.total_weight == sum(map(examples_of, indices))
    before = operator.arrays(run, round_)
    assert_close(operator.arrays(run, round_ + 1), averaged(before, shares_of(indices), round_))


def test_killed_in_training_it_counts_as_gone_and_takes_part_again_later(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    steady = crew.start("Steady", index=0)
    holding = crew.start("Held", index=1, rounds=[0])
    killed = crew.start("Held", index=2, rounds=[0])
    toml = job_toml(job={"name": "killed", "rounds": 2}, cohort={"size": 3, "quorum": 2, "min_available": 3})
    run = operator.submit(toml, MODEL)
    holding.wait("held")
    killed.wait("held")
    killed.process.kill()
    operator.until(run, lambda seen: [m.status for m in seen.round.members].count("silent") == 1, "short of one")
    holding.go()
    operator.until(run, lambda seen: seen.summary.rounds_released == 1, "through the first round")
    assert_released_from(operator, run, 0, [0, 1])
    assert fates(operator.rounds(run)[0], killed)[0] == ("silent", "the connection was lost for 1 s")

    # The second round waits for three; the same identity comes back and is one of them.
    who = killed.identity["participant"]
    assert killed.start().participant == who
    operator.finished(run)
    assert_released_from(operator, run, 1, [0, 1, 2])
    assert steady.process.running


def test_killed_in_its_upload_and_back_in_the_same_round_it_counts_once(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    killed = crew.start("HeldUpload", index=2, rounds=[0])
    run = operator.submit(LARGE_JOB, LARGE_MODEL)
    killed.wait("held")
    killed.process.kill()
    operator.until(run, lambda seen: [m.status for m in seen.round.members].count("silent") == 1, "short of one")
    killed.start().wait("held")  # the new process was asked again, trained again, and uploads under another id
    killed.go()
    operator.finished(run)
    assert_released_from(operator, run, 0, [0, 1, 2])


def test_killed_in_its_upload_for_good_half_an_update_never_counts(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    killed = crew.start("HeldUpload", index=2, rounds=[0])
    run = operator.submit(LARGE_JOB.replace("quorum = 3", "quorum = 2"), LARGE_MODEL)
    killed.wait("held")
    killed.process.kill()
    operator.finished(run)
    assert_released_from(operator, run, 0, [0, 1])
    assert fates(operator.rounds(run)[0], killed)[0][0] == "silent"


def test_cut_off_for_a_while_it_goes_on_with_its_work_and_is_waited_for_again(
    shared_server: Server, hire: Hire
) -> None:
    """It counts as silent, then comes back still working, and a round that could close without it waits."""
    operator, crew = shared_server.operator, hire(shared_server)
    holding = crew.start("Held", index=0)
    with Proxy(shared_server.address) as network:
        remote = crew.start("Held", "--server", network.address, index=1)
        toml = job_toml(job={"name": "cut off", "rounds": 1}, cohort={"size": 2, "quorum": 1, "min_available": 2})
        run = operator.submit(toml, MODEL)
        holding.wait("held")
        remote.wait("held")
        network.cut()
        operator.until(run, lambda seen: [m.status for m in seen.round.members].count("silent") == 1, "short of one")
        network.mend()
        remote.wait("connected", count=2)
        operator.until(run, lambda seen: all(m.status == "training" for m in seen.round.members), "whole again")
        holding.go()
        holding.wait("reported")
        remote.go()
        operator.finished(run)
    assert len(remote.events("held")) == 1
    assert_released_from(operator, run, 0, [0, 1])


def test_past_the_deadline_a_straggler_is_timed_out_and_the_quorum_goes_on(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(2)
    straggler = crew.start("Held", index=2, rounds=[0], obey=False)
    window = window_s()
    toml = job_toml(
        job={"name": "straggler", "rounds": 2},
        cohort={"size": 3, "quorum": 2},
        straggler={"report_window_s": window},
    )
    run = operator.submit(toml, MODEL)
    straggler.wait("held")
    operator.until(run, lambda seen: seen.summary.rounds_released == 1, "past the deadline")
    (first,) = (seen for seen in operator.rounds(run) if seen.round == 0)
    assert fates(first, straggler) == [("timed_out", "the deadline has passed")]
    assert first.closed_at - first.opened_at >= window
    assert_released_from(operator, run, 0, [0, 1])
    straggler.wait("invited", round=1)
    straggler.go()
    straggler.wait("stopped", round=0)
    operator.finished(run)
    assert_released_from(operator, run, 1, [0, 1, 2])
    assert not straggler.events("reported", round=0)


def test_near_the_deadline_a_trainer_that_listens_reports_what_it_has(shared_server: Server, hire: Hire) -> None:
    """It is stopped while there is time to send; on a very busy machine the next attempt may succeed instead."""
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    listening = crew.start("Held", index=1, rounds=[0])
    window = window_s()
    toml = job_toml(
        job={"name": "listening", "rounds": 1},
        cohort={"size": 2, "quorum": 2},
        straggler={"report_window_s": window, "max_attempts": 3, "retry_delay_s": 0.0},
    )
    run = operator.submit(toml, MODEL)
    stop = listening.wait("told_to_stop")
    assert (stop["should_stop"], stop["reason"]) == (True, "the deadline is near")
    operator.finished(run)
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))
    assert listening.wait("reported")["disposition"] == "counted"


def test_over_selected_it_is_told_to_stop(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    quick = [crew.start("Held", index=index) for index in range(2)]
    surplus = crew.start("Held", index=2, rounds=[0])
    toml = job_toml(
        job={"name": "surplus", "rounds": 1}, cohort={"size": 2, "over_selection": 1.5, "min_available": 3, "quorum": 2}
    )
    run = operator.submit(toml, MODEL)
    for client in (surplus, *quick):  # the goal is reached once all of them are in their tasks
        client.wait("held")
    for client in quick:
        client.go()
    operator.finished(run)
    stop = surplus.wait("told_to_stop")
    assert (stop["should_stop"], stop["reason"]) == (True, "the goal of 2 is reached")
    assert surplus.wait("stopped")["reason"] == "the goal of 2 is reached"
    assert fates(operator.rounds(run)[0], surplus) == [("over_selected", "the goal of 2 is reached")]
    assert_released_from(operator, run, 0, [0, 1])
    assert not surplus.events("reported")


def test_without_its_quorum_a_round_is_tried_again_and_at_last_the_run_fails(
    shared_server: Server, hire: Hire, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("min_cohort = 99\n")
    operator, crew = shared_server.operator, hire(shared_server)
    willing, crashing = crew.start("Held", index=0), crew.start("Crashing", index=1)
    not_finite = crew.start("NotFinite", index=2)
    declining = crew.start("Steady", "--policy", str(policy), index=3)
    toml = job_toml(
        job={"name": "no quorum", "rounds": 1},
        cohort={"size": 4, "quorum": 2},
        straggler={"max_attempts": 2, "retry_delay_s": 0.1},
    )
    run = operator.submit(toml, MODEL)
    summary = operator.ended(run)
    assert summary.status == FAILED
    out_of_reach = "quorum 2 can no longer be reached: only 1 member could report"
    spent = f"round 1 was abandoned 2 times, lastly because {out_of_reach}; of 4 members: 1 declined, 2 failed, "
    assert summary.reason.startswith(spent)
    attempts = operator.rounds(run)
    assert [(seen.round, seen.attempt, seen.phase) for seen in attempts] == [(0, 0, "abandoned"), (0, 1, "abandoned")]
    for seen in attempts:
        assert seen.reason == out_of_reach
        crashed, poisoned, declined = fates(seen, crashing, not_finite, declining)
        assert crashed == ("failed", "fit raised RuntimeError (its text stays in the participant's log)")
        assert poisoned[0] == "failed"
        assert poisoned[1] == "UpdateError (its text stays in the participant's log)"
        assert declined == ("declined", "policy: cohort of 4, at least 99 wanted")
        assert fates(seen, willing)[0][0] == "stopped"
    assert operator.model(run) == operator.model(run, 0)  # nothing was released


def test_an_abandoned_round_succeeds_at_the_next_attempt(shared_server: Server, hire: Hire) -> None:
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    recovering = crew.start("Crashing", index=1, attempts=1)
    toml = job_toml(
        job={"name": "retried", "rounds": 1}, cohort={"size": 2, "quorum": 2}, straggler={"retry_delay_s": 0.1}
    )
    run = operator.submit(toml, MODEL)
    operator.finished(run)
    rounds = [(seen.round, seen.attempt, seen.phase) for seen in operator.rounds(run)]
    assert rounds == [(0, 0, "abandoned"), (0, 1, "released")]
    assert recovering.wait("reported")["attempt"] == 1
    assert_close(operator.arrays(run), averaged(MODEL, shares_of([0, 1]), 0))


def test_late_reports_are_carried_into_a_later_round_with_less_weight(shared_server: Server, hire: Hire) -> None:
    """FedBuff's discount: what was trained on a model two releases old counts 1/sqrt(3) of its weight."""
    operator, crew = shared_server.operator, hire(shared_server)
    crew.steady(1)
    late = crew.start("Held", index=1, rounds=[0], obey=False)
    window = window_s()
    toml = job_toml(
        job={"name": "late", "rounds": 3},
        cohort={"size": 2, "quorum": 1},
        straggler={"report_window_s": window, "late": "carry", "max_staleness": 2, "exponent": 0.5},
    )
    run = operator.submit(toml, MODEL)
    late.wait("held")
    operator.until(run, lambda seen: seen.summary.rounds_released == 1, "past the deadline")
    late.go()
    assert late.wait("reported", round=0)["disposition"] == "carried"
    operator.finished(run)
    first = averaged(MODEL, shares_of([0]), 0)
    second = averaged(first, shares_of([0, 1]), 1)
    rounds = {seen.round: seen for seen in operator.rounds(run)}
    assert fates(rounds[0], late) == [("late", "late; counted in round 3 with staleness 2")]
    assert_close(operator.arrays(run, 1), first)
    assert_close(operator.arrays(run, 2), second)
    stale = examples_of(1) * 3**-0.5
    fresh = averaged(second, {0: 1.0}, 2)
    old = averaged(MODEL, {1: 1.0}, 0)
    share = stale / (stale + examples_of(0))
    expected = {
        name: second[name] + (1 - share) * (fresh[name] - second[name]) + share * (old[name] - MODEL[name])
        for name in MODEL
    }
    assert_close(operator.arrays(run), {name: expected[name].astype(MODEL[name].dtype) for name in MODEL})
