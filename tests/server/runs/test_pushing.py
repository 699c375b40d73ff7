import asyncio
import math
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from atoll.server.identity import ParticipantKind
from atoll.server.ingest.coordinator_api import Disposition
from atoll.server.rounds import MemberStatus, Phase, PrepareRound, RoundPrepared, RoundState, RunState
from atoll.server.runs import invitations, pushing
from atoll.server.runs.draw_effects import DrawEffects
from atoll.server.runs.instructions import Invitation, serialised
from atoll.server.runs.invitations import Invitations
from atoll.server.runs.return_spread import LONGEST_DELAY, return_spread_s
from atoll.server.stores import BlobMissingError, DirectoryBlobStore, runs
from atoll.wire.digest import INLINE_BYTES, BlobManifest
from atoll.wire.messages import layout_to_proto
from atoll.wire.pacing import LONGEST_RETRY_S
from atoll.wire.seeds import task_seed
from atoll.wire.v1 import participation_pb2
from tests.patience import WAIT_S
from tests.server.runs.conftest import Timers
from tests.server.runs.federation import LAYOUT, Client, Federation, job, opened, parsed, update_values

CARRY = 'late = "carry"'
TWO_OF_ONE = b"quorum = 1\nover_selection = 2.0\nmin_available = 2"


def is_open(state: RunState) -> bool:
    return state.round is not None and state.round.phase is Phase.OPEN


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """Number and value of every field of a serialised message, in order."""
    found = UnknownFieldSet(Empty.FromString(message))
    return [(field.field_number, field.data) for field in (found[place] for place in range(len(found)))]


def stands(client: Client, status: MemberStatus) -> Callable[[RunState], bool]:
    """Whether a member of the live round has this status."""

    def check(state: RunState) -> bool:
        member = state.round.roster.get(client.name) if state.round is not None else None
        return member is not None and member.status is status

    return check


class TestInvitations:
    async def test_members_are_told_the_same_but_for_their_weight_and_seed(self, federation: Federation) -> None:
        alice, bob = await federation.client("alice"), await federation.client("bob")
        await alice.check_in(examples=3)
        await bob.check_in(examples=8)
        await federation.submit(job(size=2))
        alices, bobs = await alice.next("participate"), await bob.next("participate")
        assert (alices.max_weight, bobs.max_weight) == (3, 8)
        assert alices.seed != bobs.seed
        alices.max_weight, alices.seed = bobs.max_weight, bobs.seed
        assert alices == bobs

    @pytest.mark.parametrize("given", [7, None])
    async def test_the_seed_of_a_member_follows_from_that_of_the_run(
        self, federation: Federation, given: int | None
    ) -> None:
        (alice,) = await federation.clients("alice")
        seeded = b"" if given is None else f"[job]\nseed = {given}".encode()
        run = await federation.submit(job().replace(b"[job]", seeded or b"[job]"))
        seed = (await federation.store.reader.run(runs.get, run)).seed
        assert seed is not None
        assert given in (seed, None)
        assert (await alice.next("participate")).seed == task_seed(seed, 0, alice.name)

    async def test_a_member_that_reconnects_is_invited_with_the_time_that_is_left(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        await federation.submit(job(window_s=30.0))
        first = await alice.next("participate")
        invited = asyncio.get_running_loop().time()
        alice.leave()
        returned = asyncio.get_running_loop().time()
        await alice.check_in()
        again = await alice.next("participate")
        assert again.key == first.key
        assert 0.0 < again.remaining_s <= 30.0 - (returned - invited)

    async def test_a_member_at_work_is_not_invited_again(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        await alice.reply(task.key, "accepted")
        alice.leave()
        await alice.check_in(resuming=(task.key,))
        assert alice.pending == 0
        await alice.report(task.key, update_values(1))
        assert (await federation.ended(run)).status == "finished"

    async def test_one_that_has_reported_is_not_invited_again(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        await federation.submit(job(size=2))
        task = await alice.next("participate")
        await alice.report(task.key, update_values(1))
        alice.leave()
        await alice.check_in()
        assert alice.pending == 0
        assert bob.pending == 1

    async def test_who_is_no_member_is_not_invited(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job())
        await federation.state(run, is_open)
        assert sorted([alice.pending, bob.pending]) == [0, 1]


class TestModel:
    async def test_what_all_members_share_is_made_and_held_once_a_round(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A layout may have thousands of tensors and a cohort thousands of members, which all return at once."""
        made: list[RoundState] = []
        build = Invitations._task

        def counted(self: Invitations, state: RunState, live: RoundState) -> participation_pb2.Participate:
            made.append(live)
            return build(self, state, live)

        monkeypatch.setattr(Invitations, "_task", counted)
        clients = [await federation.client(name) for name in ("alice", "bob", "carol")]
        for place, client in enumerate(clients):
            await client.check_in(examples=5 + place)
        run = await federation.submit(job(size=3))
        await federation.state(run, is_open)
        waiting = [client.waiting() for client in clients]
        for client in clients:
            client.leave()
            await client.check_in()
            waiting.append(client.waiting())
        assert len(made) == 1
        invitations = [one for one in waiting if isinstance(one, Invitation)]
        assert len({id(one.shared) for one in invitations}) == 1
        assert max(len(one.own) for one in invitations) < 100
        tasks = [parsed(one).participate for one in invitations]
        assert [task.max_weight for task in tasks] == [5, 6, 7] * 2
        assert {task.inputs[0].layout.SerializeToString() for task in tasks} == {
            layout_to_proto(LAYOUT).SerializeToString()
        }

    async def test_a_cohort_holds_one_copy_of_the_model(self, federation: Federation) -> None:
        """2,000 invitations that wait take their own parts, and not 2,000 models of 32 KiB."""
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        state = await federation.state(run, is_open)
        made = federation.active(run).performer.members._invitations
        live = state.round
        assert live is not None
        member = live.roster.get(alice.name)
        assert member is not None
        made._shared = live.key, bytes(INLINE_BYTES)
        tracemalloc.start()
        try:
            waiting = [
                made.for_member(
                    state, live, replace(member, participant=f"p{number:012}"), remaining_s=9.0, traceparent=""
                )
                for number in range(2_000)
            ]
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert {len(one.shared) for one in waiting} == {INLINE_BYTES}
        assert held < 2_000 * 512

    async def test_an_invitation_is_one_submessage(self, federation: Federation) -> None:
        """Parsers that do not merge repeated occurrences of a field, such as protobufjs 7 and ts-proto, can read it."""
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        await federation.state(run, is_open)
        invitation = alice.waiting()
        outer = fields(serialised(invitation))
        assert [number for number, _ in outer] == [participation_pb2.CheckInResponse.PARTICIPATE_FIELD_NUMBER]
        inner = [number for number, _ in fields(outer[0][1])]
        singular = [number for number in inner if number != participation_pb2.Participate.SETTINGS_FIELD_NUMBER]
        assert len(set(singular)) == len(singular), "and within it no field comes twice"
        assert participation_pb2.Participate.FromString(outer[0][1]) == parsed(invitation).participate

    async def test_a_small_model_comes_along(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        (model,) = (await alice.next("participate")).inputs
        assert BlobManifest.of_buffer(model.content, model.chunk_bytes).name == model.blob
        assert model.blob == federation.active(run).driver.state.model

    async def test_a_larger_one_is_left_to_be_downloaded(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(invitations, "INLINE_BYTES", LAYOUT.size_bytes - 1)
        (alice,) = await federation.clients("alice")
        await federation.submit(job())
        (model,) = (await alice.next("participate")).inputs
        assert (model.content, model.chunk_bytes) == (b"", 0)
        assert model.blob

    async def test_an_unreadable_model_does_not_prevent_an_invitation(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(_: DirectoryBlobStore, name: str) -> None:
            raise BlobMissingError(name)

        run = await federation.submit(job())
        monkeypatch.setattr(DirectoryBlobStore, "open", gone)
        (alice,) = await federation.clients("alice")
        (model,) = (await alice.next("participate")).inputs
        assert (model.content, model.blob) == (b"", federation.active(run).driver.state.model)

    async def test_a_model_that_could_not_be_read_is_sent_once_it_can_be(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(_: DirectoryBlobStore, name: str) -> None:
            raise BlobMissingError(name)

        monkeypatch.setattr(invitations, "READ_AGAIN_S", 0.0)
        run = await federation.submit(job())
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryBlobStore, "open", gone)
            (alice,) = await federation.clients("alice")
            assert (await alice.next("participate")).inputs[0].content == b""
        alice.leave()
        await alice.check_in()
        (model,) = (await alice.next("participate")).inputs
        assert (
            BlobManifest.of_buffer(model.content, model.chunk_bytes).name == federation.active(run).driver.state.model
        )


class TestSilence:
    async def test_one_that_stays_away_falls_silent_and_the_round_goes_on(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        task = await alice.next("participate")
        bob.leave()
        await federation.state(run, stands(bob, MemberStatus.SILENT))
        await alice.report(task.key, update_values(1))
        assert (await federation.ended(run)).status == "finished"
        assert (await federation.members(run))[bob.name] == ("silent", "the connection was lost for 0.05 s")

    async def test_one_that_left_with_its_task_is_waited_for_until_the_deadline(self, federation: Federation) -> None:
        """Even if it had been away before, and its silence was about to be noticed."""
        phone, bob = await federation.client("phone"), await federation.client("bob")
        await phone.check_in(unary=True)
        await bob.check_in()
        run = await federation.submit(job(size=2, quorum=1))
        task = await bob.next("participate")
        tasks = federation.active(run).performer._tasks
        phone.leave()
        assert tasks.due_in_s(f"silence {phone.name}") is not None
        await phone.check_in(unary=True)
        assert phone.session is not None
        phone.session.away_s = math.inf
        phone.leave()
        assert tasks.due_in_s(f"silence {phone.name}") is None
        await bob.report(task.key, update_values(1))
        await phone.report(task.key, update_values(2))
        assert (await federation.ended(run)).status == "finished"
        assert (await federation.members(run))[phone.name][0] == "reported"

    async def test_one_of_a_large_cohort_gets_the_time_that_it_is_asked_to_take(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        longest_s = LONGEST_RETRY_S + 0.1
        monkeypatch.setattr(pushing, "return_spread_s", lambda _: longest_s / LONGEST_DELAY)
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        await federation.state(run, is_open)
        bob.leave()
        await federation.state(run, stands(bob, MemberStatus.SILENT))
        await alice.report((await alice.next("participate")).key, update_values(1))
        await federation.ended(run)
        assert (await federation.members(run))[bob.name] == ("silent", "the connection was lost for 0.15 s")

    async def test_a_silo_gets_the_time_that_it_takes_to_start_again(self, tmp_path: Path, timers: Timers) -> None:
        async with opened(tmp_path / "data", silence_s=0.05, silo_silence_s=60.0) as federation:
            alice, bob = await federation.clients("alice", "bob")
            silo = await federation.client("silo", ParticipantKind.SILO)
            await silo.check_in()
            run = await federation.submit(job(size=3, quorum=1))
            await federation.state(run, is_open)
            silo.leave()
            bob.leave()
            await federation.state(run, stands(bob, MemberStatus.SILENT))
            assert stands(silo, MemberStatus.INVITED)(federation.active(run).driver.state)
            patience_s, passed = timers[f"silence {silo.name}"]
            passed()
            await federation.state(run, stands(silo, MemberStatus.SILENT))
            await alice.report((await alice.next("participate")).key, update_values(1))
            await federation.ended(run)
            assert patience_s == 60.0
            assert (await federation.members(run))[silo.name] == ("silent", "the connection was lost for 60 s")

    async def test_one_that_returns_in_time_is_not_silent(self, tmp_path: Path, timers: Timers) -> None:
        async with opened(tmp_path / "data", silence_s=60.0) as federation:
            alice, bob = await federation.clients("alice", "bob")
            run = await federation.submit(job(size=2, quorum=1))
            await federation.state(run, is_open)
            alice.leave()
            await alice.check_in()
            bob.leave()
            for client in (alice, bob):
                timers[f"silence {client.name}"][1]()
            await federation.state(run, stands(bob, MemberStatus.SILENT))
            assert stands(alice, MemberStatus.INVITED)(federation.active(run).driver.state)

    async def test_one_that_vanished_between_the_draw_and_the_invitation_falls_silent(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was not watched, because it was not yet a member of an open round."""
        alice, bob = await federation.clients("alice", "bob")
        prepared = DrawEffects._prepared

        def leaving(effects: DrawEffects, effect: PrepareRound, window_s: float) -> RoundPrepared:
            bob.leave()
            return prepared(effects, effect, window_s)

        monkeypatch.setattr(DrawEffects, "_prepared", leaving)
        run = await federation.submit(job(size=2, quorum=1))
        await federation.state(run, stands(bob, MemberStatus.SILENT))
        assert (await alice.next("participate")).key.run == run

    async def test_a_silent_member_that_returns_to_its_work_is_asked_anew(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2))
        task = await alice.next("participate")
        alice.leave()
        await federation.state(run, stands(alice, MemberStatus.SILENT))
        await alice.check_in(resuming=(task.key,))
        assert (await alice.next("participate")).key == task.key
        await alice.reply(task.key, "accepted")
        await federation.state(run, stands(alice, MemberStatus.TRAINING))
        await alice.report(task.key, update_values(1))
        await bob.report(task.key, update_values(2))
        assert (await federation.ended(run)).status == "finished"

    async def test_a_stopping_server_does_not_count_members_as_silent(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(size=2, quorum=1))
        await federation.state(run, is_open)
        federation.coordinator.leave()
        alice.leave()
        bob.leave()
        await asyncio.sleep(0.1)  # twice the patience: what must not happen has had its time
        assert stands(bob, MemberStatus.INVITED)(federation.active(run).driver.state)

    async def test_after_a_restart_everyone_has_time_to_come_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pushing, "RETURN_S", 0.3)
        async with opened(tmp_path / "data") as federation:
            alice, bob = await federation.clients("alice", "bob")
            run = await federation.submit(job(size=2, quorum=1))
            task = await alice.next("participate")
            await alice.report(task.key, update_values(1))
        loop, started, expect_back = asyncio.get_running_loop(), 0.0, pushing.Pusher.expect_back

        def noted(pusher: pushing.Pusher) -> None:
            nonlocal started
            started = loop.time()
            expect_back(pusher)

        monkeypatch.setattr(pushing.Pusher, "expect_back", noted)
        async with opened(tmp_path / "data") as federation:
            patience_s = 0.3 + LONGEST_DELAY * return_spread_s(2)
            driver = federation.active(run).driver
            async with asyncio.timeout(WAIT_S):
                while not driver.state.status.ended:
                    await driver.changed.wait()
            assert loop.time() - started >= patience_s
            assert "the connection was lost for " in (await federation.members(run))[bob.name][1]

    async def test_a_round_whose_deadline_passed_while_the_server_was_away_waits_for_its_members_to_come_back(
        self, tmp_path: Path
    ) -> None:
        async with opened(tmp_path / "data") as federation:
            alice, _ = await federation.clients("alice", "bob")
            run = await federation.submit(job(size=2, quorum=2, window_s=WAIT_S))
            task = await alice.next("participate")
            await federation.state(run, is_open)
        async with opened(tmp_path / "data", clock=lambda: time.time() + 2 * WAIT_S) as federation:
            alice, bob = await federation.clients("alice", "bob")
            for client in (alice, bob):
                again = await client.next("participate")
                assert (again.key, again.remaining_s > 10.0) == (task.key, True)
                await client.report(task.key, update_values(1))
            assert (await federation.ended(run)).status == "finished"

    async def test_a_member_that_returned_after_a_restart_and_leaves_counts_as_silent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pushing, "RETURN_S", 3600.0)
        async with opened(tmp_path / "data") as federation:
            await federation.clients("alice", "bob")
            run = await federation.submit(job(size=2, quorum=1))
            await federation.state(run, is_open)
        async with opened(tmp_path / "data") as federation:
            alice, _ = await federation.clients("alice", "bob")
            alice.leave()
            await federation.state(run, stands(alice, MemberStatus.SILENT))


class TestStops:
    async def test_over_selected_members_are_told_to_stop(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job().replace(b"quorum = 1", TWO_OF_ONE))
        task = await alice.next("participate")
        await bob.next("participate")
        await alice.report(task.key, update_values(1))
        stop = await bob.next("stop")
        assert (stop.key, stop.late_report_welcome) == (task.key, False)
        assert (await federation.ended(run)).status == "finished"
        assert (await federation.members(run))[bob.name] == ("over_selected", "the goal of 1 is reached")

    async def test_if_late_work_is_carried_no_member_is_stopped_until_the_run_ends(
        self, federation: Federation
    ) -> None:
        alice, bob = await federation.clients("alice", "bob")
        text = job(straggler=CARRY).replace(b"quorum = 1", TWO_OF_ONE)
        run = await federation.submit(text)
        task = await alice.next("participate")
        await bob.next("participate")
        await alice.report(task.key, update_values(1))
        await federation.ended(run)
        stop = await bob.next("stop")
        assert "finished" in stop.reason
        assert not stop.late_report_welcome

    async def test_one_that_returns_to_a_round_that_is_over_is_spared_the_work(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        await federation.submit(job(rounds=2).replace(b"quorum = 1", TWO_OF_ONE))
        task = await alice.next("participate")
        bob.leave()
        await alice.report(task.key, update_values(1))
        await bob.check_in(resuming=(task.key,))
        stop = await bob.next("stop")
        assert (stop.key, stop.reason) == (task.key, "round 1 is over")

    async def test_one_whose_late_work_is_carried_goes_on(self, federation: Federation) -> None:
        alice, bob = await federation.clients("alice", "bob")
        run = await federation.submit(job(rounds=2, straggler=CARRY).replace(b"quorum = 1", TWO_OF_ONE))
        task = await alice.next("participate")
        bob.leave()
        await alice.report(task.key, update_values(1))
        await federation.state(run, lambda state: state.version == 1)
        await bob.check_in(resuming=(task.key,))
        assert (await bob.report(task.key, update_values(2))).disposition is Disposition.CARRIED

    async def test_one_that_waits_for_its_receipt_is_left_to_ask_for_it(self, federation: Federation) -> None:
        """Its report is durable but the answer was lost, and a stop would make it give up."""
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job(rounds=2))
        task = await alice.next("participate")
        alice.leave()
        receipt = await alice.report(task.key, update_values(1))
        await federation.state(run, lambda state: state.version == 1)
        await alice.check_in(resuming=(task.key,))
        assert (await alice.next("participate")).key.round == 1
        assert alice.pending == 0
        grant = await federation.coordinator.grant_upload(alice.name, run, 0, 0)
        assert grant.receipt == receipt

    async def test_work_for_a_run_that_has_ended_is_stopped(self, federation: Federation) -> None:
        (alice,) = await federation.clients("alice")
        run = await federation.submit(job())
        task = await alice.next("participate")
        alice.leave()
        await federation.coordinator.cancel(run, "enough")
        await alice.check_in(resuming=(task.key,))
        assert (await alice.next("stop")).reason == "the run has ended"

    async def test_an_unknown_member_of_an_unknown_round_is_told_to_stop(self, federation: Federation) -> None:
        alice = await federation.client("alice")
        run = await federation.submit(job(size=2))
        key = participation_pb2.RoundKey(run=run, round=7, attempt=3)
        await alice.check_in(resuming=(key,))
        assert (await alice.next("stop")).key == key


async def test_a_clock_that_jumps_does_not_change_the_time_left(federation: Federation) -> None:
    (alice,) = await federation.clients("alice")
    run = await federation.submit(job(window_s=3600.0))
    await alice.next("participate")
    members = federation.active(run).performer.members
    members._services = replace(federation.services, clock=lambda: 4e9)
    alice.leave()
    await alice.check_in()
    assert 3600.0 - WAIT_S < (await alice.next("participate")).remaining_s < 3600.0
