"""Aggregators: rounds through them give the same bits as without, despite kills and lost connections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.wire.v1 import enrolment_pb2
from tests.patience import until_now, window_s
from tests.system.aggregators import Site
from tests.system.clients import Client, Crew
from tests.system.conftest import Hire, Serve
from tests.system.operators import job_toml
from tests.system.participants import examples_of
from tests.system.processes import Nursery
from tests.system.proxy import Proxy
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, KILLED_ROUNDS, MODEL, ROUNDS, SIZE
from tests.system.silos import JOB as SILO_JOB
from tests.system.silos import OUTER, Silo, initial_of, job_of, outer_job
from tests.system.test_private_kills import STEADY, charged, private_job

pytestmark = pytest.mark.system
PATIENT = ("--silence-s", "600")
"""Nobody counts as gone in a test that stops and starts processes, however slow the machine."""


def hired(crew: Crew, site: Site, count: int, behaviour: str = "Steady", **arguments: object) -> list[Client]:
    """Participants 0, 1, ... ``count`` - 1 at an aggregator."""
    tokens = site.tokens(count)
    return [crew.start(behaviour, token=token, index=index, **arguments) for index, token in enumerate(tokens)]


def test_small_updates_through_an_aggregator_give_the_same_bits(
    serve: Serve, processes: Nursery, hire: Hire, reference_model: bytes
) -> None:
    server = serve("upstream")
    site, crew = Site(processes, server, "north").start(), hire(server)
    clients = [*hired(crew, site, SIZE - 1), crew.start("Steady", index=SIZE - 1)]
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    for client in clients:
        client.wait("reported", count=ROUNDS)
    assert site.metric("atoll_aggregator_participants") == SIZE - 1
    listed = server.operator.participants()[site.id]
    assert (listed.organisation, listed.connected) == ("north", True)


def test_large_updates_through_two_aggregators_give_the_same_bits_and_a_model_comes_once(
    serve: Serve, processes: Nursery, hire: Hire, killed_undisturbed: bytes
) -> None:
    server = serve("upstream")
    north, south = (Site(processes, server, name).start() for name in ("north", "south"))
    crew = hire(server)
    hired(crew, north, SIZE - 1)
    crew.start("Steady", token=south.tokens(1)[0], index=SIZE - 1)
    run = server.operator.submit(KILLED_JOB, KILLED_MODEL)
    server.operator.finished(run)
    assert server.operator.model(run) == killed_undisturbed
    size = sum(array.nbytes for array in KILLED_MODEL.values())
    elements = sum(array.size for array in KILLED_MODEL.values())
    for site in (north, south):
        assert site.metric("atoll_aggregator_model_bytes") == KILLED_ROUNDS * size
        assert 0 < site.metric("atoll_aggregator_partial_bytes") <= KILLED_ROUNDS * 8 * elements
    until_now(lambda: not any((north.data / "spool").glob("r*")))  # uploads end with their run, a moment after it


def test_killed_in_mid_round_it_comes_back_and_what_it_acknowledged_counts(
    serve: Serve, processes: Nursery, hire: Hire, killed_undisturbed: bytes
) -> None:
    server = serve("upstream", *PATIENT)
    site, crew = Site(processes, server, "north").start(), hire(server)
    done = hired(crew, site, SIZE - 1)
    at_work = crew.start("Held", token=site.tokens(1)[0], index=SIZE - 1, rounds=[1])
    run = server.operator.submit(KILLED_JOB, KILLED_MODEL)
    at_work.wait("held", round=1)
    for client in done:
        client.wait("reported", round=1)
    site.kill()
    for client in (*done, at_work):
        client.wait("disconnected")
    site.start()
    for client in (*done, at_work):
        client.wait("connected", count=2)
    at_work.go()
    server.operator.finished(run)
    assert server.operator.model(run) == killed_undisturbed
    for client in (*done, at_work):
        assert len(client.events("trained", round=1)) == 1


def test_without_the_server_participants_stay_connected_and_the_round_goes_on_when_it_is_back(
    serve: Serve, processes: Nursery, hire: Hire, reference_model: bytes
) -> None:
    server = serve("upstream", *PATIENT)
    with Proxy(server.address) as line:
        site, crew = Site(processes, server, "north", line.address).start(), hire(server)
        clients = [
            *hired(crew, site, SIZE - 1),
            crew.start("Held", token=site.tokens(1)[0], index=SIZE - 1, rounds=[1, 2]),
        ]
        run = server.operator.submit(JOB, MODEL)
        clients[-1].wait("held", round=1)
        line.cut()
        clients[-1].go()  # its report is not acknowledged before the line is mended
        site.process.wait_for_log("no connection to the server")
        line.mend()
        clients[-1].wait("held", round=2)
        server.kill()
        server.start()
        site.linked(3)
        clients[-1].go()
        server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    for client in clients:
        assert not client.events("disconnected")
        assert [event["round"] for event in client.events("trained")] == list(range(ROUNDS))


def test_one_that_stays_away_is_left_out_with_the_reason(
    serve: Serve, processes: Nursery, hire: Hire, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    config.write_text("aggregator_silence_s = 0\n")
    server = serve("upstream", "--config", str(config))
    site, crew = Site(processes, server, "north").start(), hire(server)
    lost = crew.start("Steady", token=site.tokens(1)[0], index=0)
    others = [crew.start("Held", index=index, rounds=[0]) for index in (1, 2)]
    toml = job_toml(
        job={"name": "lost", "rounds": 1},
        cohort={"size": SIZE, "quorum": 2},
        straggler={"report_window_s": 2 * window_s()},
    )
    run = server.operator.submit(toml, MODEL)
    for client in others:
        client.wait("held")
    lost.wait("reported")
    site.kill()
    for client in others:
        client.go()
    server.operator.finished(run)
    (seen,) = server.operator.rounds(run)
    assert (seen.phase, seen.reported, seen.total_weight) == ("released", 2, examples_of(1) + examples_of(2))
    fate = next(member for member in seen.members if member.participant == lost.participant)
    assert fate.status == "rejected"
    assert f"aggregator {site.id} is not connected" in fate.detail


def test_it_serves_participants_that_are_bound_to_it_and_no_others(
    serve: Serve, processes: Nursery, hire: Hire
) -> None:
    server = serve("upstream")
    site, crew = Site(processes, server, "north").start(), hire(server)
    stranger = crew.start("Steady", "--server", site.address, index=0)
    assert stranger.process.wait() != 0
    assert f"was enrolled for the server, not for aggregator {site.id}" in stranger.process.log
    moved = crew.start("Steady", "--server", server.address, token=site.tokens(1)[0], index=1)
    moved.wait("connected")
    run = server.operator.submit(job_toml(job={"name": "moved", "rounds": 1}, cohort={"size": 1}), MODEL)
    server.operator.finished(run)
    assert site.metric("atoll_aggregator_participants") == 0


def test_revoked_it_stops_and_says_why(serve: Serve, processes: Nursery, hire: Hire) -> None:
    server = serve("upstream")
    site = Site(processes, server, "north").start()
    client = hire(server).start("Steady", token=site.tokens(1)[0], index=0)
    client.wait("connected")
    server.operator.revoke(site.id, "the contract ended")
    assert site.process.wait() != 0
    assert "the contract ended" in site.process.log
    client.wait("disconnected")


def test_its_certificates_and_its_participants_are_renewed(serve: Serve, processes: Nursery, hire: Hire) -> None:
    server = serve("upstream", "--certificate-lifetime-s", "45", *PATIENT)
    site = Site(processes, server, "north").start()
    client = hire(server).start("Steady", token=site.tokens(1)[0], index=0)
    client.wait("connected")
    site.linked(2)  # with its new certificate
    server.process.wait_for_log(f"certificate of {client.participant} renewed")
    server.process.wait_for_log(f"certificate of {site.id} renewed")
    run = server.operator.submit(job_toml(job={"name": "renewed", "rounds": 1}, cohort={"size": 1}), MODEL)
    server.operator.finished(run)
    assert site.process.running


def test_one_of_its_participants_is_revoked_there(serve: Serve, processes: Nursery, hire: Hire) -> None:
    server = serve("upstream")
    site, crew = Site(processes, server, "north").start(), hire(server)
    leaving, staying = hired(crew, site, 2)
    staying.wait("connected")
    server.operator.revoke(leaving.participant, "left the study")
    assert leaving.process.wait() != 0
    assert "was revoked: left the study" in leaving.process.log
    run = server.operator.submit(job_toml(job={"name": "smaller", "rounds": 1}, cohort={"size": 1}), MODEL)
    server.operator.finished(run)
    staying.wait("reported")
    assert not staying.events("disconnected")


def test_personal_tensors_stay_with_the_participant_and_the_shared_ones_have_the_same_bits(
    serve: Serve, processes: Nursery, hire: Hire
) -> None:
    server = serve("upstream")
    site = Site(processes, server, "north").start()
    client = hire(server).add("Personal", token=site.tokens(1)[0])
    client.behaviour = "personal:Personal"
    model = {
        "body.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
        "body.bias": np.zeros(4, np.float32),
    }
    toml = job_toml(
        job={"name": "personal", "rounds": 2, "seed": 3},
        cohort={"size": 1},
        evaluation={"before_training": True, "final": True},
    )
    found = []
    for address in (server.address, site.address):
        client.options = ("--server", address)
        client.start().wait("connected")
        run = server.operator.submit(toml, model)
        server.operator.finished(run)
        client.process.terminate()
        (client.state / "personal.safetensors").unlink()  # the next run begins with the head as it was
        found.append(
            (server.operator.model(run), [sorted(seen.metrics.items()) for seen in server.operator.rounds(run)])
        )
    assert found[0] == found[1]
    assert site.metric("atoll_aggregator_partial_bytes") > 0


def test_silos_of_an_aggregator_send_their_fragments_through_it(
    serve: Serve, processes: Nursery, tmp_path: Path
) -> None:
    """DiLoCo: the models have the same bits as those of silos that join the server itself."""
    server = serve("upstream")
    site, initial = Site(processes, server, "north").start(), initial_of(SILO_JOB, tmp_path)
    found = []
    for way, tokens in (("direct", ["", ""]), ("through", site.tokens(2, enrolment_pb2.PARTICIPANT_KIND_SILO))):
        silos = [
            Silo(
                processes, f"{way}-{at}", server, 1, job_of(job={"seed": at}), "--max-rounds", "2", token=token
            ).start()
            for at, token in enumerate(tokens)
        ]
        run = server.operator.submit(
            outer_job(way, 2, 2, aggregation={**OUTER["aggregation"], "fragments": 2}), initial
        )
        server.operator.finished(run)
        assert [silo.process.wait() for silo in silos] == [0, 0]
        found.append(server.operator.model(run))
    assert found[0] == found[1]
    assert site.metric("atoll_aggregator_partial_bytes") > 0


def test_a_private_run_has_the_same_noise_and_charges(serve: Serve, processes: Nursery, hire: Hire) -> None:
    server = serve("private")
    server.kill()
    server.env["ATOLL_NOISE_SECRET"] = "07" * 32
    server.start(dies=STEADY)
    site, crew = Site(processes, server, "north").start(), hire(server)
    directly = ("--server", server.address)
    clients = [crew.start("Steady", *directly, token=token, index=at) for at, token in enumerate(site.tokens(SIZE))]
    beside = server.operator.submit(private_job("gaussian"), MODEL)
    server.operator.finished(beside)
    for client in clients:
        client.process.terminate()
        client.options = ("--server", site.address)
        client.start()
    run = server.operator.submit(private_job("gaussian"), MODEL)
    server.operator.finished(run)
    assert site.metric("atoll_aggregator_participants") == SIZE
    assert server.operator.model(run) == server.operator.model(beside)
    server.kill()
    assert charged(server, run) == charged(server, beside) == [(number, 0) for number in range(3)]
