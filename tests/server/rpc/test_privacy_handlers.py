"""The control service about the privacy ledger, over real sockets."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from atoll.server.privacy import accounting, ledger_answers
from atoll.server.privacy.chain import verified
from atoll.server.privacy.events import Event, Sampling
from atoll.server.stores import Store, deletion, rounds, runs, schema
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.privacy.ledgers import CLINIC, DELTA, FIRST, SECOND, draw, fill
from tests.server.rpc.world import Participant, World, refusal, refused_code
from tests.server.stores.samples import NOW, attempt, run

OPEN = "ropen"


def poisson(count: int) -> tuple[Event, ...]:
    return (Event(1.0, 0.1, count, Sampling.POISSON),)


async def write(world: World, work: Any, *arguments: Any, **named: Any) -> Any:
    """Write to the server's own database."""
    assert world.daemon._coordinator is not None
    return await world.daemon._coordinator._services.writer.run(work, *arguments, **named)


async def populations(world: World, **request: Any) -> control_pb2.ListPopulationsResponse:
    return await world.operator.control.ListPopulations(control_pb2.ListPopulationsRequest(**request), timeout=WAIT_S)


async def charges(world: World, **request: Any) -> control_pb2.ListChargesResponse:
    return await world.operator.control.ListCharges(control_pb2.ListChargesRequest(**request), timeout=WAIT_S)


async def limited(world: World, **request: Any) -> control_pb2.PopulationSummary:
    answer = await world.operator.control.LimitPopulation(control_pb2.LimitPopulationRequest(**request), timeout=WAIT_S)
    return answer.population


async def about(world: World, participant: str) -> control_pb2.GetParticipantPrivacyResponse:
    request = control_pb2.GetParticipantPrivacyRequest(participant=participant)
    return await world.operator.control.GetParticipantPrivacy(request, timeout=WAIT_S)


@pytest.fixture
async def clinic(world: World) -> World:
    await write(world, fill)
    return world


async def test_an_empty_ledger(world: World) -> None:
    assert not (await populations(world)).populations


async def test_what_a_population_has_spent(clinic: World) -> None:
    (found,) = (await populations(clinic)).populations
    assert (found.population, found.adjacency, found.unit, found.charges) == (CLINIC, "add_remove", "participant", 5)
    assert (found.accountant, found.delta) == ("prv", DELTA)
    assert found.epsilon == accounting.epsilon(poisson(5), DELTA / 2, "prv")
    assert not found.HasField("limit_epsilon")
    assert not found.flaw
    first, second = found.runs
    assert (first.run, first.name, first.releases, first.accountant) == (FIRST, "rfirst digits", 3, "rdp")
    assert not first.HasField("target")
    assert (second.run, second.accountant, second.target) == (SECOND, "prv", 8.0)
    assert second.epsilon == accounting.epsilon(poisson(2), DELTA, "prv")
    assert (await populations(clinic, population=CLINIC, verify=True)).populations[0] == found


async def test_populations_come_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_answers, "MAX_POPULATIONS", 2)
    for name in ("a", "b", "c"):
        await limited(world, population=name, epsilon=1.0, delta=DELTA, adjacency="add_remove")
    page = await populations(world)
    assert ([item.population for item in page.populations], page.next) == (["a", "b"], "b")
    page = await populations(world, after="b")
    assert ([item.population for item in page.populations], page.next) == (["c"], "")


async def test_charges_of_a_population_are_its_export(clinic: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_answers, "MAX_CHARGES", 2)
    (population,) = (await populations(clinic)).populations
    lines, start = [population.line], 0
    while True:
        page = await charges(clinic, population=CLINIC, start=start, limit=100)
        assert len(page.charges) <= 2
        lines += [charge.line for charge in page.charges]
        if not page.HasField("next_seq"):
            break
        start = page.next_seq
    assert len(lines) == 6
    assert verified(lines, {CLINIC: population.head}).flaws == ()


async def test_charges_of_a_run_with_its_course(clinic: World) -> None:
    page = await charges(clinic, run=SECOND, epsilon=True)
    assert [charge.version for charge in page.charges] == [0, 1]
    assert [charge.epsilon_after for charge in page.charges] == [
        accounting.epsilon(poisson(count), DELTA, "prv") for count in (1, 2)
    ]
    charge = page.charges[0]
    assert (charge.noise_multiplier, charge.sample_rate, charge.sampling, charge.clip) == (1.0, 0.1, "poisson", 1.0)
    newest = await charges(clinic, run=FIRST, newest=True, limit=2, epsilon=True)
    assert [charge.version for charge in newest.charges] == [1, 2]
    assert newest.charges[-1].epsilon_after == accounting.epsilon(poisson(3), DELTA, "rdp")
    assert [charge.seq for charge in (await charges(clinic, population=CLINIC, newest=True, limit=2)).charges] == [3, 4]
    assert not (await charges(clinic, population=CLINIC, limit=1)).charges[0].HasField("epsilon_after")


async def test_charges_are_listed_for_exactly_one_existing_run_or_population(clinic: World) -> None:
    ask = clinic.operator.control.ListCharges
    for request in (
        control_pb2.ListChargesRequest(),
        control_pb2.ListChargesRequest(population=CLINIC, epsilon=True),
    ):
        call = ask(request, timeout=WAIT_S)
        assert await refused_code(call) == ("INVALID_ARGUMENT", "privacy.charges")
    call = ask(control_pb2.ListChargesRequest(run="rnone"), timeout=WAIT_S)
    assert await refused_code(call) == ("NOT_FOUND", "run.missing")
    call = ask(control_pb2.ListChargesRequest(population="none"), timeout=WAIT_S)
    assert await refused_code(call) == ("NOT_FOUND", "population.missing")
    await write(clinic, runs.add, dataclasses.replace(run(OPEN), status="finished", finished_at=NOW))
    assert not (await charges(clinic, run=OPEN)).charges


async def test_a_damaged_ledger_is_reported(clinic: World, caplog: pytest.LogCaptureFixture) -> None:
    rows = schema.charges
    await write(clinic, lambda connection: connection.execute(rows.delete().where(rows.c.seq == 4)))
    (found,) = (await populations(clinic)).populations
    shown = "the privacy ledger of population clinic is damaged: 5 charges are on record, the first 4 are here"
    assert found.flaw == shown
    assert shown in caplog.text


async def test_what_was_verified_before_is_verified_again_when_asked(clinic: World) -> None:
    await populations(clinic)
    rows = schema.charges
    changed = update(rows).where(rows.c.seq == 0).values(charged_at=0.0)
    await write(clinic, lambda connection: connection.execute(changed))
    assert not (await populations(clinic)).populations[0].flaw
    assert "charge 0 was changed" in (await populations(clinic, verify=True)).populations[0].flaw


async def test_the_privacy_of_a_participant(clinic: World, alice: Participant) -> None:
    await write(clinic, draw, FIRST, alice.name, drawn=3, counted=2)
    plain = dataclasses.replace(run(OPEN), name="open", status="finished", finished_at=NOW, rounds_released=4)
    await write(clinic, runs.add, plain)
    await write(clinic, rounds.put, dataclasses.replace(attempt(), run_id=OPEN))
    await write(clinic, draw, OPEN, alice.name, drawn=1, counted=1)
    found = await about(clinic, alice.name)
    assert (found.participant, found.organisation) == (alice.name, "acme")
    seen = {item.run: (item.population, item.drawn, item.counted) for item in found.runs}
    assert seen == {FIRST: (CLINIC, 3, 2), OPEN: ("", 1, 1)}
    assert [item.population for item in found.populations] == [CLINIC]
    assert found.epsilon == found.populations[0].epsilon == accounting.epsilon(poisson(5), DELTA / 2, "prv")
    assert found.delta == DELTA
    assert not found.unknown


async def test_evaluations_are_not_counted(clinic: World, alice: Participant) -> None:
    evaluation = dataclasses.replace(attempt(7), run_id=FIRST, kind="evaluate")
    await write(clinic, rounds.put, evaluation)
    await write(clinic, draw, FIRST, alice.name, drawn=1, counted=1)
    member = rounds.Member(FIRST, 7, 0, alice.name, "reported")
    await write(clinic, rounds.put_members, [member])
    (part,) = (await about(clinic, alice.name)).runs
    assert (part.drawn, part.counted) == (1, 1)


async def test_a_participant_of_runs_that_are_gone(clinic: World, alice: Participant) -> None:
    """The charges stay, but the record of who was drawn is gone, and the answer says so."""
    await write(clinic, draw, FIRST, alice.name, drawn=1, counted=1)
    await write(clinic, deletion.delete_run, FIRST)
    found = await about(clinic, alice.name)
    assert not found.runs
    assert list(found.unknown) == [CLINIC]
    (population,) = (await populations(clinic, verify=True)).populations
    assert [(item.run, item.name, item.releases) for item in population.runs] == [
        (FIRST, "", 3),
        (SECOND, "rsecond digits", 2),
    ]


async def test_no_figure_hides_a_damaged_ledger(clinic: World, alice: Participant) -> None:
    await write(clinic, draw, FIRST, alice.name, drawn=1, counted=1)
    await write(clinic, lambda connection: connection.execute(schema.charges.delete()))
    found = await about(clinic, alice.name)
    assert math.isinf(found.epsilon)
    assert found.populations[0].flaw


async def test_an_unknown_participant(world: World) -> None:
    request = control_pb2.GetParticipantPrivacyRequest(participant="pnobody")
    call = world.operator.control.GetParticipantPrivacy(request, timeout=WAIT_S)
    assert await refused_code(call) == ("NOT_FOUND", "participant.missing")


async def test_many_runs_are_cut(clinic: World, alice: Participant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_answers, "MAX_PARTS", 1)
    for name in (FIRST, SECOND):
        await write(clinic, draw, name, alice.name, drawn=1, counted=1)
    found = await about(clinic, alice.name)
    assert found.truncated
    assert len(found.runs) == 1


async def test_a_limit_is_set_told_and_taken_away(clinic: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "atoll.server"):
        found = await limited(clinic, population=CLINIC, epsilon=8.0, delta=1e-6)
        assert (found.limit_epsilon, found.limit_delta, found.delta, found.limited_by) == (8.0, 1e-6, 1e-6, "admin")
        assert found.limited_at > 0
        assert not (await limited(clinic, population=CLINIC)).HasField("limit_epsilon")
    assert [line for line in caplog.messages if line.startswith("population")] == [
        "population clinic given a limit of epsilon 8 at delta 1e-06 by operator admin",
        "population clinic given no limit by operator admin",
    ]


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        ({"population": CLINIC, "epsilon": 1.0}, ("INVALID_ARGUMENT", "privacy.limit")),
        ({"population": CLINIC, "delta": 1e-5}, ("INVALID_ARGUMENT", "privacy.limit")),
        ({"population": CLINIC, "epsilon": -1.0, "delta": 1e-5}, ("INVALID_ARGUMENT", "privacy.limit")),
        ({"population": CLINIC, "epsilon": math.nan, "delta": 1e-5}, ("INVALID_ARGUMENT", "privacy.limit")),
        ({"population": "new", "epsilon": 1.0, "delta": 1e-5}, ("NOT_FOUND", "population.missing")),
        (
            {"population": "new", "epsilon": 1.0, "delta": 1e-5, "adjacency": "odd"},
            ("INVALID_ARGUMENT", "privacy.limit"),
        ),
        (
            {"population": "New\n", "epsilon": 1.0, "delta": 1e-5, "adjacency": "add_remove"},
            ("INVALID_ARGUMENT", "privacy.limit"),
        ),
        (
            {"population": CLINIC, "epsilon": 1.0, "delta": 1e-5, "adjacency": "replace_one"},
            ("FAILED_PRECONDITION", "privacy.adjacency"),
        ),
    ],
)
async def test_limits_that_are_refused(clinic: World, request_: dict[str, Any], refused: tuple[str, str]) -> None:
    call = clinic.operator.control.LimitPopulation(control_pb2.LimitPopulationRequest(**request_), timeout=WAIT_S)
    found = await refusal(call)
    assert found.detail is not None
    assert (found.status.name, found.detail.code) == refused


async def test_participants_are_not_told(alice: Participant) -> None:
    """Poisson sampling relies on secret draws: the answers must not reveal who was drawn."""
    for call in (
        alice.control.ListPopulations(control_pb2.ListPopulationsRequest(), timeout=WAIT_S),
        alice.control.ListCharges(control_pb2.ListChargesRequest(population=CLINIC), timeout=WAIT_S),
        alice.control.GetParticipantPrivacy(
            control_pb2.GetParticipantPrivacyRequest(participant=alice.name), timeout=WAIT_S
        ),
        alice.control.LimitPopulation(control_pb2.LimitPopulationRequest(population=CLINIC), timeout=WAIT_S),
    ):
        assert await refused_code(call) == ("PERMISSION_DENIED", "certificate.role")


async def test_a_start_on_a_damaged_ledger_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server still serves rounds of other populations and of runs without privacy."""
    store = Store.open(tmp_path / "data")
    store.writer.submit(fill).result()
    rows = schema.charges
    store.writer.submit(lambda connection: connection.execute(rows.delete().where(rows.c.seq == 0))).result()
    store.close()
    async with World(tmp_path / "data") as world:
        assert (await populations(world)).populations[0].flaw
    errors = [record.getMessage() for record in caplog.records if vars(record).get("population") == CLINIC]
    assert errors == [
        "the privacy ledger of population clinic is damaged: charge 0 is missing: charge 1 comes in its place; "
        "no round of its runs starts"
    ]
