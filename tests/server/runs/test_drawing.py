import asyncio
from typing import Any

import pytest

from atoll.server.jobs import JobSpec, parse_job
from atoll.server.rounds import CohortDrawn, DrawCohort, Phase, PrepareRound, RoundKey, RoundKind
from atoll.server.runs import draw as draws
from atoll.server.runs.cohort import is_able
from atoll.server.runs.draw import Draw
from atoll.server.runs.drawing import Waiting
from atoll.server.runs.histories import reported
from atoll.server.runs.online import count_online
from atoll.server.runs.session import Session
from atoll.server.stores import ParticipantHistory, history
from atoll.wire.encoding import PLAIN, Encoding
from atoll.wire.v1 import participation_pb2
from tests.patience import WAIT_S
from tests.server.privacy.jobs import job as private_job
from tests.server.runs.federation import Federation, job

KEY = RoundKey(3, 1)


def spec(**changes: Any) -> JobSpec:
    return parse_job(job(**changes).replace(b"[straggler]", b"seed = 7\n[straggler]"))


def wanted(count: int = 2, *, kind: RoundKind = RoundKind.TRAIN, needed: int = 1, excluded: Any = ()) -> DrawCohort:
    return DrawCohort(KEY, kind, count, needed, tuple(excluded), KEY.round)


async def draw(federation: Federation, effect: DrawCohort, job_spec: JobSpec, run: str = "r") -> CohortDrawn:
    drawn = federation.coordinator._starter.pool_of("default").draw(Draw(run, effect, job_spec))
    return drawn if isinstance(drawn, CohortDrawn) else await asyncio.wait_for(drawn(), WAIT_S)


async def waiting_for(drawn: CohortDrawn | Waiting) -> CohortDrawn:
    assert not isinstance(drawn, CohortDrawn)
    return await drawn()


async def waits(waiting: asyncio.Task[CohortDrawn]) -> bool:
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    return not done


async def settles(waiting: asyncio.Task[CohortDrawn]) -> bool:
    """Whether a draw still waits after it has looked at the changes."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


async def test_a_draw_is_recorded_so_that_it_can_be_repeated(federation: Federation) -> None:
    everyone = {client.name for client in await federation.clients(*"abcdef")}
    drawn = await draw(federation, wanted(), spec(size=2))
    assert (drawn.key, drawn.eligible, drawn.sampler, drawn.seed) == (KEY, 6, "uniform", 7)
    assert len(drawn.members) == 2
    assert {name for name, _ in drawn.members} < everyone
    federation.coordinator._starter.pool_of("default").finish_draw("r")
    assert await draw(federation, wanted(), spec(size=2)) == drawn


async def test_it_waits_until_enough_are_there(federation: Federation) -> None:
    await federation.clients("alice")
    waiting = asyncio.create_task(draw(federation, wanted(), spec(size=2)))
    assert await waits(waiting)
    await federation.clients("bob")
    assert len((await asyncio.wait_for(waiting, WAIT_S)).members) == 2


async def test_one_that_comes_and_goes_is_not_counted(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    waiting = asyncio.create_task(draw(federation, wanted(), spec(size=2)))
    assert await waits(waiting)
    alice.leave()
    await federation.clients("bob")
    assert await waits(waiting)
    waiting.cancel()


async def test_only_those_who_can_do_it_are_drawn(federation: Federation) -> None:
    idle, plain, evaluator = [await federation.client(name) for name in ("idle", "plain", "eve")]
    await idle.check_in(examples=0, can_evaluate=True)
    await plain.check_in(can_evaluate=False)
    await evaluator.check_in(can_evaluate=True)
    trained = await draw(federation, wanted(3), spec(size=1))
    assert {name for name, _ in trained.members} == {plain.name, evaluator.name}
    federation.coordinator._starter.pool_of("default").finish_draw("r")
    evaluated = await draw(federation, wanted(3, kind=RoundKind.EVALUATE), spec(size=1))
    assert evaluator.name in {name for name, _ in evaluated.members}
    assert plain.name not in {name for name, _ in evaluated.members}


async def test_an_encoding_that_a_participant_does_not_speak_is_not_asked_of_it(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    await (await federation.client("bob")).check_in(encodings=[Encoding.FLOAT16])
    drawn = await draw(federation, wanted(), spec(size=1))
    assert [name for name, _ in drawn.members] == [alice.name]


async def test_a_draw_that_waits_for_an_encoding_says_how_many_participants_cannot_send_it(
    federation: Federation,
) -> None:
    old = [await federation.client(name) for name in ("bob", "carol")]
    for client in old:
        await client.check_in(encodings=PLAIN)
    calls: asyncio.Queue[str] = asyncio.Queue()
    asked = parse_job(job(size=2).replace(b"[straggler]", b'[aggregation]\nencoding = "int4"\n[straggler]'))
    pool = federation.coordinator._starter.pool_of("default")
    waiting = asyncio.create_task(waiting_for(pool.draw(Draw("r", wanted(), asked), calls.put_nowait)))
    why = await asyncio.wait_for(calls.get(), WAIT_S)
    assert "2 of 2 participants connected cannot send int4_block" in why
    assert "aggregation.encoding" in why
    names = {client.name for client in await federation.clients("alice", "dora")}
    assert {name for name, _ in (await asyncio.wait_for(waiting, WAIT_S)).members} == names


async def test_a_draw_that_waits_for_more_participants_gives_no_reason(federation: Federation) -> None:
    await federation.clients("alice")
    calls: asyncio.Queue[str] = asyncio.Queue()
    waiting = asyncio.create_task(
        waiting_for(
            federation.coordinator._starter.pool_of("default").draw(Draw("r", wanted(), spec(size=2)), calls.put_nowait)
        )
    )
    assert await asyncio.wait_for(calls.get(), WAIT_S) == ""
    await federation.clients("bob")
    await asyncio.wait_for(waiting, WAIT_S)


async def test_excluded_participants_are_not_drawn_but_count_as_connected(federation: Federation) -> None:
    alice, bob = await federation.clients("alice", "bob")
    drawn = await draw(federation, wanted(1, excluded=[bob.name]), spec(size=2))
    assert [name for name, _ in drawn.members] == [alice.name]


async def test_what_one_run_has_drawn_another_does_not(federation: Federation) -> None:
    names = {client.name for client in await federation.clients("alice", "bob")}
    first = await draw(federation, wanted(1), spec(size=1), "one")
    second = await draw(federation, wanted(1), spec(size=1), "two")
    assert {first.members[0][0], second.members[0][0]} == names
    third = asyncio.create_task(draw(federation, wanted(1), spec(size=1), "three"))
    assert await waits(third)
    federation.coordinator._starter.pool_of("default").finish_draw("one")
    assert (await asyncio.wait_for(third, WAIT_S)).members == first.members


async def test_a_run_that_waits_looks_only_at_what_has_changed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reply to another run, and each participant that connects or disconnects, is one participant to look at."""
    looked_at: list[str] = []

    def counted(session: Session, kind: RoundKind, job_spec: JobSpec) -> bool:
        looked_at.append(session.participant)
        return is_able(session, kind, job_spec)

    clients = await federation.clients(*(f"c{number}" for number in range(40)))
    run = await federation.submit(job(size=30, quorum=1))
    state = await federation.state(run, lambda state: state.round is not None and state.round.phase is Phase.OPEN)
    assert state.round is not None
    waiting = asyncio.create_task(draw(federation, wanted(35, needed=35), spec(size=35), "other"))
    assert await waits(waiting)
    monkeypatch.setattr(draws, "is_able", counted)
    key = participation_pb2.RoundKey(run=run)
    members = [client for client in clients if state.round.roster.get(client.name) is not None]
    free = [client for client in clients if client not in members]
    for client in members[:24]:
        await client.reply(key, "accepted")
        await client.reply(key, "declined")
        assert await settles(waiting)
    assert sorted(looked_at) == sorted(client.name for client in members[:24])
    free[0].leave()
    assert await settles(waiting)
    await free[0].check_in()
    assert await settles(waiting)
    assert len(looked_at) == 25
    await members[24].reply(key, "declined")
    drawn = await asyncio.wait_for(waiting, WAIT_S)
    assert len(drawn.members) == 35


async def test_a_run_that_waits_for_organisations_looks_only_at_theirs(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event of a waiting run looked at every participant that was connected."""
    await federation.clients(*(f"c{number}" for number in range(40)))
    text = job(size=2).replace(b"[straggler]", b'required = ["north"]\n[straggler]')
    required = parse_job(text)
    waiting = asyncio.create_task(draw(federation, wanted(), required))
    assert await waits(waiting)
    scans: list[int] = []
    sessions = federation.services.sessions.of("default")
    everyone = sessions.all

    def counted() -> list[Session]:
        scans.append(1)
        return everyone()

    monkeypatch.setattr(sessions, "all", counted)
    for name in "abcdefgh":
        await federation.clients(name)
        assert await settles(waiting)
    assert not scans
    north = await federation.client("north", organisation="north")
    await north.check_in()
    drawn = await asyncio.wait_for(waiting, WAIT_S)
    assert drawn.required == ((north.name, "north"),)
    assert len(scans) == 1


async def test_a_draw_that_reads_histories_looks_at_all_participants_twice(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its wait begins, and for the draw itself."""
    await federation.clients("a", "b")
    scans: list[int] = []
    sessions = federation.services.sessions.of("default")
    everyone = sessions.all

    def counted() -> list[Session]:
        scans.append(len(sessions))
        return everyone()

    monkeypatch.setattr(sessions, "all", counted)
    await draw(
        federation, wanted(), parse_job(job(size=2).replace(b"[straggler]", b'sampler = "least_recent"\n[straggler]'))
    )
    assert scans == [2, 2]


CORRELATED = (
    'sampler = "poisson"\nrate = 1.0',
    'mechanism = "tree"\nnoise_multiplier = 1.0\ndelta = 1e-6\nclip = 1.0\nmax_participations = 5\nmin_separation = 1',
)


async def test_no_more_members_are_invited_than_a_private_sum_can_hold(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.server.runs.cohort.most_members", lambda size: 3 * size)
    await federation.clients(*"abcdef")
    cohort, privacy = CORRELATED
    private = private_job(f"size = 1\n{cohort}", privacy)
    drawn = await draw(federation, wanted(1), private)
    assert (drawn.eligible, len(drawn.members)) == (6, 3)
    federation.coordinator._starter.pool_of("default").finish_draw("r")
    assert (await draw(federation, wanted(1), private)).members == drawn.members, "the same ones in the same round"


async def test_a_secret_draw_is_limited_to_the_participants_that_its_round_can_hold(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("atoll.server.runs.cohort.most_eligible", lambda size, _: 4 * size)
    await federation.clients(*"abcdef")
    private = private_job('size = 1\nsampler = "poisson"\nrate = 0.5')
    drawn = await draw(federation, wanted(1), private)
    assert drawn.eligible == 4
    assert "only 4 of 6 participants are in the draw" in caplog.text


async def test_a_secret_draw_takes_no_participant_without_a_stream_and_says_so(federation: Federation) -> None:
    """Its presence may depend on an earlier draw, and the account assumes independent draws."""
    names = {client.name for client in await federation.clients("a", "b")}
    phone = await federation.client("phone")
    await phone.check_in(unary=True)
    federation.services.sessions.pace.of("default").next_return(phone.name)
    private = private_job('size = 2\nsampler = "poisson"\nrate = 1.0')
    drawn = await draw(federation, wanted(3), private)
    assert {name for name, _ in drawn.members} == names
    federation.coordinator._starter.pool_of("default").finish_draw("r")
    calls: asyncio.Queue[str] = asyncio.Queue()
    pool = federation.coordinator._starter.pool_of("default")
    waiting = asyncio.create_task(waiting_for(pool.draw(Draw("r", wanted(3, needed=3), private), calls.put_nowait)))
    assert "participants that check in without a stream are not drawn" in await asyncio.wait_for(calls.get(), WAIT_S)
    assert not federation.services.sessions.holds_unary("default"), "it would wait in its call for nothing"
    waiting.cancel()
    public = await draw(federation, wanted(3), spec(size=2), "public")
    assert phone.name in {name for name, _ in public.members}


async def test_a_waiting_run_holds_those_without_a_stream(federation: Federation) -> None:
    waiting = asyncio.create_task(draw(federation, wanted(), spec(size=2)))
    assert await waits(waiting)
    assert federation.services.sessions.holds_unary("default")
    phone, other = [await federation.client(name) for name in ("phone", "other")]
    for client in (phone, other):
        await client.check_in(unary=True)
    assert {name for name, _ in (await asyncio.wait_for(waiting, WAIT_S)).members} == {phone.name, other.name}
    assert not federation.services.sessions.holds_unary("default")


async def test_time_online_is_counted_once(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    assert alice.session is not None
    alice.session.counted_from -= 100.0
    for _ in range(3):
        stored = count_online(federation.services, [alice.session])
        assert stored is not None
        await asyncio.wrap_future(stored)
    known = await federation.store.reader.run(lambda connection: history.of(connection, [alice.name]))
    assert sum(known[alice.name].online_s) == pytest.approx(100.0, abs=5.0)
    assert count_online(federation.services, []) is None


async def test_a_window_may_be_learned(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    known = ParticipantHistory(alice.name, 1.0)
    for seconds in (10.0, 10.0, 10.0):
        known = reported(seconds, 1.0)(known)
    await federation.store.writer.run(lambda connection: history.put(connection, [known]))
    learned = parse_job(
        job().replace(
            b"report_window_s = 300.0", b"learned = { factor = 2.0, min_s = 1.0, max_s = 100.0, initial_s = 50.0 }"
        )
    )
    effect = PrepareRound(KEY, RoundKind.TRAIN, ((alice.name, 10),), (), 10)
    pool = federation.coordinator._starter.pool_of("default")
    assert await pool.report_window_s(effect, learned) == pytest.approx(20.0, rel=0.2)
