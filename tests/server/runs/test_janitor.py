"""Blobs that the janitor removes and keeps; it never removes a blob that a transaction is about to refer to."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection

from atoll.server.config.storage_settings import DAY_S, StorageSettings
from atoll.server.disk.space import Room
from atoll.server.errors import StorageFullError, UnavailableError
from atoll.server.identity import ParticipantKind, Peer, Role, mint
from atoll.server.rounds import Phase
from atoll.server.runs import janitor as janitor_module
from atoll.server.runs.evaluators import Evaluator
from atoll.server.runs.janitor import Janitor
from atoll.server.stores import (
    AuditEntry,
    AuditFilter,
    BlobMissingError,
    DirectoryBlobStore,
    StoreUnavailableError,
    audit,
    certificates,
    event_log,
    models,
    runs,
    schema_version,
    snapshots,
    tokens,
)
from tests.patience import WAIT_S, until
from tests.server.runs.federation import LAYOUT, Federation, job, opened, update_values


class Short(Room):
    """A disk that is nearly full on the test's command, or once there was room for ``last``."""

    def __init__(self, path: Path, last: str = "") -> None:
        super().__init__(path, 0)
        self.short = False
        self._last = last

    def require(self, what: str, needed_bytes: int = 0) -> None:
        super().require(what, needed_bytes)
        if what == self._last:
            self.short, self._last = True, ""

    @property
    def free_bytes(self) -> int:
        return -1 if self.short else super().free_bytes


async def finished(federation: Federation, toml: bytes, rounds: int) -> str:
    """A run to its end with one participant; its id."""
    (alice,) = await federation.clients("alice")
    run = await federation.submit(toml)
    for number in range(rounds):
        task = await alice.next("participate")
        await alice.report(task.key, update_values(number))
    await federation.ended(run)
    alice.leave()
    return run


def old(federation: Federation, *names: str) -> None:
    """Date these blobs back by two days."""
    then, blobs = federation.services.clock() - 2 * 86_400, federation.store.blobs
    assert isinstance(blobs, DirectoryBlobStore)
    for name in names:
        os.utime(blobs.path_of(name), (then, then))


def put(federation: Federation, content: bytes) -> str:
    with federation.store.blobs.create() as writer:
        writer.write(content)
        return writer.commit().name


async def events_of(federation: Federation, run: str) -> int:
    return (await federation.store.reader.run(event_log.held, run)).count


class TestTidy:
    async def test_a_blob_without_a_reference_is_removed_after_an_hour(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            fresh, stale = put(federation, b"fresh"), put(federation, b"stale")
            old(federation, stale)
            would = await federation.coordinator.janitor.tidy(dry_run=True)
            assert [(one.kind, one.count) for one in would] == [("models", 1)]
            assert federation.blobs() >= {fresh, stale}
            assert await federation.coordinator.janitor.tidy() == would
            assert federation.blobs() == {fresh}
            assert await federation.coordinator.janitor.tidy() == ()

    async def test_a_server_that_lost_its_turn_removes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was frozen while another server was active, and does not know the runs with uploads in the bucket."""

        def lost(_: Connection) -> None:
            raise StoreUnavailableError("another server uses the database", "stop this one")

        async with opened(tmp_path / "data") as federation:
            stale, upload = put(federation, b"stale"), tmp_path / "data" / "spool" / "raaaaaaaaaaaa" / "0.0"
            old(federation, stale)
            upload.mkdir(parents=True)
            with monkeypatch.context() as patch:
                patch.setattr(schema_version, "touch", lost)
                with pytest.raises(StoreUnavailableError):
                    await federation.coordinator.janitor.tidy()
            assert stale in federation.blobs()
            assert upload.exists()
            await federation.coordinator.janitor.tidy()
            assert stale not in federation.blobs()
            assert not upload.exists()

    async def test_expired_certificates_and_unused_tokens_go_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(janitor_module, "_PAGE_ROWS", 2)
        async with opened(tmp_path / "data") as federation:
            now, keep_s = federation.services.clock(), StorageSettings().keep_credentials_s

            def fill(connection: Connection) -> None:
                for number, ended in enumerate((1.0, 60.0, 90.0, -60.0, -keep_s)):  # seconds ago, beyond the retention
                    peer = Peer(Role.PARTICIPANT, "paaaaaaaaaaaa", f"{number:064x}", 0.0, now - keep_s - ended, "1")
                    certificates.add(connection, peer, issued_at=0.0)
                for ago_s in (keep_s + 200.0, keep_s - 200.0):
                    minted = mint("acme", ParticipantKind.EDGE, created_by="a", now=now - ago_s, lifetime_s=1.0)
                    tokens.add(connection, minted.record)

            await federation.store.writer.run(fill)
            would = await federation.coordinator.janitor.tidy(dry_run=True)
            assert [(one.kind, one.count) for one in would] == [("certificates", 3), ("join tokens", 1)]
            assert await federation.coordinator.janitor.tidy() == would
            assert await federation.coordinator.janitor.tidy() == ()
            kept = await federation.store.reader.run(
                lambda connection: certificates.of_subject(connection, Role.PARTICIPANT, "paaaaaaaaaaaa")
            )
            assert len(kept) == 2

    async def test_old_entries_of_the_audit_log_go_by_whole_days(self, tmp_path: Path) -> None:
        """Each removal is an entry itself, so it happens once a day at most."""
        async with opened(tmp_path / "data") as federation:
            now, keep_s = federation.services.clock(), StorageSettings().keep_audit_s
            for ago_s in (keep_s + 2 * DAY_S, keep_s + DAY_S, 0.0):
                await federation.store.writer.run(audit.append, AuditEntry(now - ago_s, "a", "", "", "run.pause"))
            would = await federation.coordinator.janitor.tidy(dry_run=True)
            assert [(one.kind, one.count) for one in would] == [("audit entries", 2)]
            assert await federation.coordinator.janitor.tidy() == would
            assert await federation.coordinator.janitor.tidy() == ()
            left = await federation.store.reader.run(audit.listed, AuditFilter())
            assert [one.action for one in left] == ["audit.prune", "run.pause"]
            assert (await federation.store.reader.run(audit.verified)).flaw == ""

    async def test_certificates_stay_as_long_as_they_can_be_renewed(self, tmp_path: Path) -> None:
        """An old certificate can be renewed only if no newer one was used, so records of newer ones must stay."""
        async with opened(tmp_path / "data") as federation:
            services, grace_s = federation.services, 2 * StorageSettings().keep_credentials_s
            now = services.clock()

            def fill(connection: Connection) -> None:
                for number, ended in enumerate((60.0, -60.0)):  # seconds ago, beyond the grace period
                    peer = Peer(Role.PARTICIPANT, "paaaaaaaaaaaa", f"{number:064x}", 0.0, now - grace_s - ended, "1")
                    certificates.add(connection, peer, issued_at=0.0)

            await federation.store.writer.run(fill)
            janitor = Janitor(services, StorageSettings(), list, renewal_grace_s=grace_s)
            assert [(one.kind, one.count) for one in await janitor.tidy()] == [("certificates", 1)]

    async def test_what_is_held_stays_however_old(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            name = put(federation, b"weights")
            old(federation, name)
            federation.services.leases.hold("somebody", name)
            await federation.coordinator.janitor.tidy()
            assert federation.blobs() == {name}

    async def test_nothing_goes_while_a_back_up_is_made_and_the_next_sweep_makes_up_for_it(
        self, tmp_path: Path
    ) -> None:
        async with opened(tmp_path / "data", keep_models=1) as federation:
            blobs = federation.store.blobs
            assert isinstance(blobs, DirectoryBlobStore)
            with blobs.kept():
                run = await finished(federation, job(rounds=3), 3)
                assert len(federation.blobs()) == 4
            listed = await federation.store.reader.run(models.listed, run)
            await federation.coordinator.janitor.tidy()
            assert federation.blobs() == {listed[0].blob, listed[-1].blob}

    async def test_the_event_log_of_a_run_that_ended_long_ago_is_removed_but_its_rounds_stay(
        self, tmp_path: Path
    ) -> None:
        settings = StorageSettings(keep_ended_days=1.0)
        async with opened(tmp_path / "data", storage=settings) as federation:
            run = await finished(federation, job(rounds=2), 2)
            await federation.coordinator.janitor.tidy()
            assert await events_of(federation, run) > 0

            def age(connection: Connection) -> None:
                row = runs.get(connection, run)
                assert row.finished_at is not None
                runs.set_status(connection, run, row.status, finished_at=row.finished_at - 90_000)

            await federation.store.writer.run(age)
            before = await federation.rounds(run)
            found = await federation.coordinator.janitor.tidy()
            assert {one.kind for one in found} == {"events", "models"}
            assert await events_of(federation, run) == 0
            assert await federation.store.reader.run(snapshots.newest_first, run) == ()
            assert await federation.rounds(run) == before
            listed = await federation.store.reader.run(models.listed, run)
            assert federation.blobs() == {listed[0].blob, listed[-1].blob}

    async def test_uploads_of_an_ended_run_go(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            run = await finished(federation, job(), 1)
            folder = federation.services.spool.root / run / "0.0"
            folder.mkdir(parents=True)
            (folder / "left.data").write_bytes(b"x" * 100)
            (found,) = await federation.coordinator.janitor.tidy()
            assert (found.kind, found.run, found.count, found.stored_bytes) == ("uploads", run, 1, 100)
            assert federation.services.spool.runs() == []

    async def test_it_comes_again_by_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with opened(tmp_path / "data", storage=StorageSettings(sweep_s=1.0)) as federation:
            swept, loop = asyncio.Event(), asyncio.get_running_loop()
            sweep = DirectoryBlobStore.sweep

            def seen(blobs: DirectoryBlobStore, unneeded: frozenset[str]) -> int:
                loop.call_soon_threadsafe(swept.set)
                return sweep(blobs, unneeded)

            monkeypatch.setattr(DirectoryBlobStore, "sweep", seen)
            await asyncio.wait_for(swept.wait(), WAIT_S)
            assert federation.coordinator.janitor._task is not None


class TestDelete:
    async def test_a_run_with_a_participant_at_work_is_not_deleted_yet(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            run = await finished(federation, job(), 1)
            busy = Janitor(federation.services, StorageSettings(), lambda: [run])
            with pytest.raises(UnavailableError, match="is just ending"):
                await busy.delete_run(run, operator="admin")
            assert await events_of(federation, run) > 0

    async def test_its_uploads_and_blobs_go_but_not_those_that_are_held(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data", keep_models=5) as federation:
            run = await finished(federation, job(rounds=2), 2)
            folder = federation.services.spool.root / run / "0.0"
            folder.mkdir(parents=True)
            (folder / "left.data").write_bytes(b"x" * 100)
            initial, first, second = (one.blob for one in await federation.store.reader.run(models.listed, run))
            assert federation.blobs() == {initial, first, second}
            federation.services.leases.hold("somebody", first)
            found = await federation.coordinator.janitor.delete_run(run, operator="admin")
            removed = {one.kind: one.count for one in found}
            assert (removed["uploads"], removed["models"]) == (1, 2)
            assert federation.blobs() == {first}
            assert federation.services.spool.runs() == []


class TestBest:
    async def test_the_best_model_is_kept_besides_the_newest(self, tmp_path: Path) -> None:
        figures = iter((0.1, 0.9, 0.5, 0.3, 0.2))
        evaluation = 'final = false\nbefore_training = false\nserver = "judge"\n'
        evaluation += '[retention]\nbest = "server/accuracy"\nmode = "max"'
        toml = job(rounds=5, evaluation=evaluation)
        evaluators: dict[str, Evaluator] = {"judge": lambda _: {"accuracy": next(figures)}}
        async with opened(tmp_path / "data", keep_models=1, evaluators=evaluators) as federation:
            run = await finished(federation, toml, 5)
            row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
            listed = await federation.store.reader.run(models.listed, run)
            assert (row.best_model, row.best_value) == (listed[2].blob, 0.9)
            assert federation.blobs() == {listed[place].blob for place in (0, 2, 5)}

    async def test_a_model_that_participants_found_best_is_kept_though_they_do_so_a_round_later(
        self, tmp_path: Path
    ) -> None:
        toml = job(rounds=5, evaluation='final = false\n[retention]\nbest = "eval/loss"\nmode = "min"')
        async with opened(tmp_path / "data", keep_models=1) as federation:
            (alice,) = await federation.clients("alice")
            run = await federation.submit(toml)
            for number, loss in enumerate((0.9, 0.1, 0.5, 0.3, 0.2)):
                task = await alice.next("participate")
                digest = await asyncio.to_thread(alice.spool, task.key, update_values(number))
                await alice.claim(task.key, digest, evaluation={"loss": loss})
            await federation.ended(run)
            row = await federation.store.reader.run(lambda connection: runs.get(connection, run))
            listed = await federation.store.reader.run(models.listed, run)
            assert (row.best_model, row.best_value) == (listed[1].blob, 0.1)
            assert federation.blobs() == {listed[place].blob for place in (0, 1, 5)}


class TestRace:
    """A run stops needing a model just when another run is submitted with it."""

    async def test_a_submitted_model_is_not_removed_under_its_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The removal has found the blob unused; the submission must come after it, or keep the blob."""
        async with opened(tmp_path / "data") as federation:
            name = put(federation, bytes(LAYOUT.size_bytes))
            old(federation, name)
            finds, go = asyncio.Event(), threading.Event()
            loop, set_aside = asyncio.get_running_loop(), DirectoryBlobStore.set_aside

            def slow(blobs: DirectoryBlobStore, asked: str) -> bool:
                loop.call_soon_threadsafe(finds.set)
                assert go.wait(WAIT_S)
                return set_aside(blobs, asked)

            monkeypatch.setattr(DirectoryBlobStore, "set_aside", slow)
            tidying = asyncio.create_task(federation.coordinator.janitor.tidy())
            await finds.wait()
            submitting = asyncio.create_task(
                federation.coordinator.submit(
                    job_toml=job(), file_name="job.toml", layout=LAYOUT, initial_blob=name, operator="admin"
                )
            )
            go.set()
            await tidying
            with pytest.raises(BlobMissingError):
                await submitting
            assert await federation.store.reader.run(runs.listed, project=None) == ()

    async def test_a_model_that_is_being_submitted_is_leased(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            name = put(federation, bytes(LAYOUT.size_bytes))
            old(federation, name)
            federation.services.leases.hold("upload", name)
            await federation.coordinator.janitor.tidy()
            await federation.submit(job())


class TestRoom:
    async def test_a_run_whose_round_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        room = Short(tmp_path)
        async with opened(tmp_path / "data", room=room) as federation:
            room.short = True
            with pytest.raises(StorageFullError, match="a round of this run"):
                await federation.submit(job())

    @pytest.mark.parametrize(
        ("last", "waits"), [("a round of this run", "the next round"), ("a round", "the draw")], ids=["start", "draw"]
    )
    async def test_rounds_wait_for_room_say_so_and_go_on(self, last: str, waits: str, tmp_path: Path) -> None:
        """The disk fills before the run starts, or while it waits for participants."""
        room = Short(tmp_path, last)
        async with opened(tmp_path / "data", room=room) as federation:
            run = await federation.submit(job())
            active = federation.active(run)
            await until(lambda: room.short)
            (alice,) = await federation.clients("alice")
            await federation.state(run, lambda _: bool(active.performer.trouble))
            assert f"{waits} waits: no room for a round" in active.performer.trouble
            state = active.driver.state
            assert state.round is not None
            assert state.round.phase is Phase.CREATED
            room.short = False
            task = await alice.next("participate")
            assert task.key.attempt == 0
            await alice.report(task.key, update_values(1))
            assert (await federation.ended(run)).status == "finished"
            assert active.performer.trouble == ""
