"""Extended runs: the same bits as a longer run, despite crashes, and every refusal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.config.storage_settings import StorageSettings
from atoll.server.errors import ConflictError, InvalidRequestError, StorageError, UnavailableError
from atoll.server.jobs import first_model, parse_job, statistics_layout
from atoll.server.rounds import DeadlinePassed, RunStatus
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.end_effects import EndEffects
from atoll.server.runs.journal import SqlJournal
from atoll.server.stores import RecordMissingError, models, runs
from atoll.wire.v1 import participation_pb2
from tests.patience import WAIT_S
from tests.server.runs.federation import LAYOUT, Client, Federation, Values, job, opened

pytestmark = pytest.mark.slow

FEDADAM = '[optimiser]\nname = "fedadam"\n'
NAMES = ("alice", "bob", "carol")


def seeded(rounds: int, *, sections: str = "", evaluation: str = "final = false\nbefore_training = false") -> bytes:
    """A job whose draws and updates follow from its seeds."""
    text = job(rounds=rounds, size=2, evaluation=evaluation).decode()
    text = text.replace("[model]", "seed = 5\n[model]")
    text = text.replace("[straggler]", "seed = 7\nmin_available = 3\n[straggler]", 1)
    return (text + sections).encode()


def trained(task: participation_pb2.Participate) -> Values:
    """An update that depends on the model, like a gradient, and on the task's seed."""
    model = np.frombuffer(task.inputs[0].content, np.float32)
    noise = np.random.default_rng(task.seed).normal(size=LAYOUT.size)
    return (0.1 * noise - 0.2 * model).astype(np.float32)


async def take_part(client: Client) -> None:
    """Do every task of every round, until cancelled."""
    while True:
        task = await client.invitation()
        if task.kind == participation_pb2.Participate.KIND_EVALUATE:
            await client.evaluate(task.key, loss=1.0)
        else:
            await client.report(task.key, trained(task))


@contextlib.asynccontextmanager
async def participants(federation: Federation) -> AsyncIterator[None]:
    """Three participants that do their tasks."""
    tasks = [asyncio.create_task(take_part(one)) for one in await federation.clients(*NAMES)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def extend(federation: Federation, run: str, rounds: int) -> None:
    await asyncio.wait_for(federation.coordinator.extend(run, rounds), WAIT_S)
    federation.submitted[run] = federation.active(run)


async def row_of(federation: Federation, run: str) -> runs.Run:
    return await federation.store.reader.run(runs.get, run)


class TestSameBits:
    @pytest.mark.parametrize("sections", ["", FEDADAM, FEDADAM + "[iterate_averaging]\ndecay = 0.9\n"])
    @pytest.mark.parametrize(
        "evaluation",
        [
            "final = false\nbefore_training = false",
            "final = true\nbefore_training = false",
            "every = 2\nfinal = true\nbefore_training = false",
        ],
    )
    async def test_an_extended_run_has_the_models_of_one_with_all_its_rounds(
        self, tmp_path: Path, sections: str, evaluation: str
    ) -> None:
        async with opened(tmp_path / "data") as federation, participants(federation):
            whole = await federation.submit(seeded(6, sections=sections, evaluation=evaluation))
            wanted = await federation.ended(whole)
            run = await federation.submit(seeded(3, sections=sections, evaluation=evaluation))
            assert (await federation.ended(run)).rounds_released == 3
            await extend(federation, run, 3)
            found = await federation.ended(run)
            assert found.current_model == wanted.current_model

            def blobs(connection: Any, of: str) -> list[str | None]:
                return [model.blob for model in models.listed(connection, of)]

            read = federation.store.reader.run
            assert await read(blobs, run) == await read(blobs, whole)
            assert (found.rounds_total, found.rounds_released, found.status) == (6, 6, "finished")
            assert found.extended_after == (3,)

    async def test_a_cancelled_run_goes_on_with_the_round_that_was_broken_off(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            async with participants(federation):
                wanted = await federation.ended(await federation.submit(seeded(4, sections=FEDADAM)))
            run = await federation.submit(seeded(4, sections=FEDADAM))
            async with participants(federation):
                await federation.state(run, lambda state: state.version >= 2)
            await federation.coordinator.cancel(run, "enough")
            cancelled = await federation.ended(run)
            assert cancelled.status == "cancelled"
            async with participants(federation):
                await extend(federation, run, 4 - cancelled.rounds_released)
                found = await federation.ended(run)
            assert (found.status, found.reason) == ("finished", "all rounds are done")
            assert (found.current_model, found.rounds_total) == (wanted.current_model, 4)

    async def test_twice_is_as_good_as_once(self, federation: Federation) -> None:
        async with participants(federation):
            wanted = await federation.ended(await federation.submit(seeded(4, sections=FEDADAM)))
            run = await federation.submit(seeded(1, sections=FEDADAM))
            await federation.ended(run)
            for rounds in (1, 2):
                await extend(federation, run, rounds)
                found = await federation.ended(run)
            assert found.current_model == wanted.current_model
            assert found.extended_after == (1, 2)


class TestWhatIsRecorded:
    async def test_the_run_is_a_running_one_with_more_rounds(self, federation: Federation) -> None:
        async with participants(federation):
            run = await federation.submit(seeded(2))
            before = await federation.ended(run)
        await extend(federation, run, 3)
        now = await row_of(federation, run)
        assert (now.status, now.reason, now.finished_at, now.rounds_total) == ("running", "", None, 5)
        assert (now.job_toml, now.created_at, now.current_model) == (
            before.job_toml,
            before.created_at,
            before.current_model,
        )
        there = await federation.clients(*NAMES)
        invited = [asyncio.create_task(one.invitation()) for one in there]
        done, waiting = await asyncio.wait(invited, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().rounds_total for task in done} == {5}
        for task in waiting:
            task.cancel()

    async def test_the_history_goes_on_after_a_final_evaluation(self, federation: Federation) -> None:
        async with participants(federation):
            run = await federation.submit(seeded(1, evaluation="final = true\nbefore_training = false"))
            await federation.ended(run)
            await extend(federation, run, 1)
            await federation.ended(run)
        found = await federation.rounds(run)
        assert [(row.round, row.kind, row.version) for row in found] == [
            (0, "train", 0),
            (1, "evaluate", 1),
            (2, "train", 1),
            (3, "evaluate", 2),
        ]

    async def test_a_rule_that_ended_the_run_waits_for_its_patience_anew(self, federation: Federation) -> None:
        async with participants(federation):
            text = seeded(9, evaluation="every = 1\nfinal = false\nbefore_training = false")
            section = b'[stop]\nmetric = "eval/loss"\nmode = "min"\npatience = 2\n'
            run = await federation.submit(text + section)
            stopped = await federation.ended(run)
            assert stopped.rounds_released == 3
            assert stopped.reason.startswith("stopped early")
            await extend(federation, run, 5)
            again = await federation.ended(run)
        assert (again.rounds_released, again.rounds_total) == (5, 8)
        assert again.reason.startswith("stopped early")


class TestCrashes:
    async def test_a_server_that_dies_right_after_the_extension_goes_on_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(tmp_path / "data") as federation, participants(federation):
            wanted = await federation.ended(await federation.submit(seeded(4, sections=FEDADAM)))
            run = await federation.submit(seeded(2, sections=FEDADAM))
            await federation.ended(run)
            monkeypatch.setattr(Coordinator, "_go_on", lambda *_: None)
            await federation.coordinator.extend(run, 2)
            assert federation.coordinator.active(run) is None
        async with opened(tmp_path / "data") as federation, participants(federation):
            found = await federation.ended(run)
            assert (found.current_model, found.rounds_total) == (wanted.current_model, 4)

    async def test_a_server_that_dies_in_an_extended_round_goes_on_with_it(self, tmp_path: Path) -> None:
        async with opened(tmp_path / "data") as federation:
            async with participants(federation):
                wanted = await federation.ended(await federation.submit(seeded(3)))
                run = await federation.submit(seeded(2))
                await federation.ended(run)
            await extend(federation, run, 1)
            await federation.clients(*NAMES)
            await federation.state(run, lambda state: state.round is not None and state.round.opened_at > 0)
        async with opened(tmp_path / "data") as federation, participants(federation):
            assert (await federation.ended(run)).current_model == wanted.current_model

    @pytest.mark.parametrize("stored", [True, False])
    async def test_after_an_error_of_the_disk_the_run_goes_on_if_its_extension_is_stored(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch, stored: bool
    ) -> None:
        append: Callable[..., Awaitable[None]] = SqlJournal.append

        async def failing(journal: SqlJournal, entry: Any) -> None:
            if stored:
                await append(journal, entry)
            raise StorageError("store.io", "the disk is gone")

        async with participants(federation):
            run = await federation.submit(seeded(1))
            await federation.ended(run)
            monkeypatch.setattr(SqlJournal, "append", failing)
            if not stored:
                with pytest.raises(StorageError, match="the disk is gone"):
                    await federation.coordinator.extend(run, 1)
                monkeypatch.setattr(SqlJournal, "append", append)
                assert (await row_of(federation, run)).status == "finished"
                await extend(federation, run, 1)
            else:
                await federation.coordinator.extend(run, 1)
                monkeypatch.setattr(SqlJournal, "append", append)
                federation.submitted[run] = federation.active(run)
            assert (await federation.ended(run)).rounds_released == 2

    async def test_a_caller_that_leaves_does_not_leave_the_run_without_its_work(self, federation: Federation) -> None:
        async with participants(federation):
            run = await federation.submit(seeded(1))
            await federation.ended(run)
            async with federation.coordinator.janitor.paused():
                caller = asyncio.create_task(federation.coordinator.extend(run, 1))
                await asyncio.sleep(0)
                caller.cancel()
                await asyncio.gather(caller, return_exceptions=True)
            await asyncio.wait_for(federation.coordinator._extender.stop(), WAIT_S)
            federation.submitted[run] = federation.active(run)
            assert (await federation.ended(run)).rounds_released == 2


class TestTheEndBefore:
    async def test_the_extension_waits_until_the_end_has_removed_what_it_must(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end removes every upload of the run, including those of the following rounds if it is late."""
        let_go, tidy = asyncio.Event(), EndEffects._tidy

        async def held(self: EndEffects, what: str, work: Any) -> None:
            await let_go.wait()
            await tidy(self, what, work)

        async with participants(federation):
            run = await federation.submit(seeded(1))
            monkeypatch.setattr(EndEffects, "_tidy", held)
            await federation.state(run, lambda state: state.status.ended)
            extending = asyncio.create_task(federation.coordinator.extend(run, 1))
            _, waiting = await asyncio.wait({extending}, timeout=0.2)
            assert waiting
            let_go.set()
            await asyncio.wait_for(extending, WAIT_S)
            federation.submitted[run] = federation.active(run)
            assert (await federation.ended(run)).rounds_released == 2

    async def test_of_two_extensions_at_once_one_is_refused(self, federation: Federation) -> None:
        async with participants(federation):
            run = await federation.submit(seeded(1))
            await federation.ended(run)
        both = (federation.coordinator.extend(run, 1) for _ in range(2))
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in found] == [type(None), ConflictError]
        assert (await row_of(federation, run)).rounds_total == 2


class TestRefusals:
    async def finished(self, federation: Federation, text: bytes | None = None) -> str:
        async with participants(federation):
            run = await federation.submit(text or seeded(1))
            await federation.ended(run)
        return run

    async def refused(self, federation: Federation, run: str, rounds: int = 1) -> str:
        with pytest.raises((ConflictError, InvalidRequestError)) as caught:
            await federation.coordinator.extend(run, rounds)
        assert federation.coordinator.active(run) is None or caught.value.detail.code == "run.active"
        return str(caught.value.detail)

    async def test_an_unknown_run(self, federation: Federation) -> None:
        with pytest.raises(RecordMissingError, match="rzzzzzzzzzzzz"):
            await federation.coordinator.extend("rzzzzzzzzzzzz", 1)

    @pytest.mark.parametrize("rounds", [0, 1_000_000])
    async def test_a_number_of_rounds_out_of_range(self, federation: Federation, rounds: int) -> None:
        said = await self.refused(federation, await self.finished(federation), rounds)
        assert f"rounds = {rounds}" in said
        assert "allowed is 1 to 999999" in said

    async def test_a_run_that_goes_on(self, federation: Federation) -> None:
        run = await federation.submit(job())
        said = await self.refused(federation, run)
        assert f"run {run} is running; only a run that has ended is extended" in said
        assert f"atoll run cancel {run}" in said

    async def test_a_run_that_has_failed(self, federation: Federation) -> None:
        await federation.clients("alice")
        run = await federation.submit(job(straggler="max_attempts = 1"))
        state = await federation.state(run, lambda state: state.round is not None and state.round.opened_at > 0)
        assert state.round is not None
        await federation.active(run).driver.post(DeadlinePassed(state.round.key))
        assert (await federation.ended(run)).status == RunStatus.FAILED
        said = await self.refused(federation, run)
        assert f"run {run} has failed" in said
        assert "quorum 1 was missed" in said
        assert "submit a new run" in said

    async def test_a_private_run(self, federation: Federation) -> None:
        noise = '[aggregation]\nweighting = "uniform"\n[privacy]\npopulation = "people"\ndelta = 1e-5\n'
        noise += "clip = 1.0\nnoise_multiplier = 3.0\n"
        text = job(rounds=2).replace(b"[cohort]\n", b'[cohort]\nsampler = "poisson"\nrate = 0.5\n') + noise.encode()
        run = await federation.submit(text.replace(b"quorum = 1\n", b"quorum = 0\n"))
        await federation.coordinator.cancel(run, "enough")
        await federation.ended(run)
        said = await self.refused(federation, run)
        assert f"run {run} is private: its noise, and what was promised to its participants, are for 2 rounds" in said
        assert "it is charged to the same ledger" in said

    async def test_a_run_of_statistics(self, federation: Federation) -> None:
        text = '[job]\nname = "ages"\n[cohort]\nsize = 3\n[statistics]\nnumeric = ["age"]\n'
        section = parse_job(text).statistics
        assert section is not None
        with federation.store.blobs.create() as writer:
            for values in first_model(section).values():
                writer.write(values.tobytes())
            blob = writer.commit().name
        submitted = await federation.coordinator.submit(
            job_toml=text.encode(),
            file_name="ages.toml",
            layout=statistics_layout(section),
            initial_blob=blob,
            operator="admin",
        )
        federation.submitted[submitted.run] = federation.active(submitted.run)
        await federation.coordinator.cancel(submitted.run, "enough")
        await federation.ended(submitted.run)
        said = await self.refused(federation, submitted.run)
        assert f"run {submitted.run} finds statistics: its number of rounds follows from its query" in said
        assert "submit a job with another query" in said

    async def test_a_run_whose_log_has_gone_with_the_days(self, tmp_path: Path) -> None:
        later = 0.0
        storage = StorageSettings(keep_ended_days=1.0)
        async with opened(tmp_path / "data", storage=storage, clock=lambda: time.time() + later) as federation:
            run = await self.finished(federation)
            later = 2 * 86_400.0
            assert "ended more than 1 days ago" in await self.refused(federation, run)
            await federation.coordinator.janitor.tidy(fresh_s=0.0)
            said = await self.refused(federation, run)
        assert "keep_ended_days" in said
        assert f"atoll run model {run}" in said

    async def test_a_run_whose_optimiser_state_is_gone(self, federation: Federation) -> None:
        run = await self.finished(federation, seeded(1, sections=FEDADAM))
        newest = await federation.store.reader.run(models.latest, run)
        assert newest is not None
        blob = newest.optimiser_blobs[0][1]
        federation.store.blobs.set_aside(blob)
        federation.store.blobs.sweep()
        said = await self.refused(federation, run)
        assert f"its optimiser's state is gone (blob {blob[:16]})" in said
        assert "submit a new run" in said

    async def test_while_the_server_stops(self, federation: Federation) -> None:
        run = await self.finished(federation)
        federation.coordinator.leave()
        with pytest.raises(UnavailableError, match="stopping"):
            await federation.coordinator.extend(run, 1)
