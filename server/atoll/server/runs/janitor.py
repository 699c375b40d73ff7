"""Removes what nothing needs any more: once before runs are resumed, then every ``sweep_s`` and when asked to.

| what | when it goes |
|---|---|
| uploads of a run | with their round; what a killed server left, here |
| event log and snapshots of a run | ``keep_ended_days`` after its end |
| models and optimiser states | see ``stores.models.to_keep`` |
| expired certificates | ``keep_credentials_days`` or ``renewal_grace_s`` after that, whichever is longer |
| join tokens that expired unused | ``keep_credentials_days`` after that |
| blobs that no row names | an hour after they were made: they may be somebody's next model |
| an ended run with all that is its own | when an operator says so (``delete_run``), never by itself |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from atoll.server.config.storage_settings import StorageSettings
from atoll.server.errors import ConflictError, ServerError, UnavailableError
from atoll.server.rounds import RunStatus
from atoll.server.runs.services import Services
from atoll.server.stores import certificates, deletion, event_log, models, runs, snapshots, tokens

log = logging.getLogger(__name__)

_FRESH_S = 3600.0
_PAGE_ROWS = 2000
"""Certificates or join tokens removed in one transaction."""
_PAGE_EVENTS = 2000
"""Events removed in one transaction: others wait no longer than that takes."""


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be: things of one kind, of one run (empty: of none)."""

    kind: str
    run: str
    count: int
    stored_bytes: int


class Janitor:
    """Tidies one server's storage.

    Args:
        services: stores, spool, leases.
        settings: what is kept.
        active: the runs that have not ended.
        renewal_grace_s: how long an expired certificate can still be renewed, and is kept at least: what is on record
            of newer ones decides whether it may.
    """

    def __init__(
        self,
        services: Services,
        settings: StorageSettings,
        active: Callable[[], Iterable[str]],
        renewal_grace_s: float = 0.0,
    ) -> None:
        self._services = services
        self._settings = settings
        self._active = active
        self._renewal_grace_s = renewal_grace_s
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Tidy from now on."""
        self._task = asyncio.create_task(self._run(), name="janitor")

    async def stop(self) -> None:
        """Stop; what is being removed is waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def tidy(self, *, dry_run: bool = False, fresh_s: float = _FRESH_S) -> tuple[Pruned, ...]:
        """Remove what nothing needs; what that was. ``dry_run``: remove nothing.

        Args:
            dry_run: only tell.
            fresh_s: blobs that no row names stay for so many seconds.
        """
        async with self._turn:
            found = [
                *await self._uploads(dry_run=dry_run),
                *await self._events(dry_run=dry_run),
                *await self._credentials(dry_run=dry_run),
                *await self._blobs(dry_run=dry_run, fresh_s=fresh_s),
            ]
        if found and not dry_run:
            total = sum(one.stored_bytes for one in found)
            log.info("storage: removed %d things, %d bytes", sum(one.count for one in found), total)
        return tuple(found)

    async def delete_run(self, run: str, *, operator: str) -> tuple[Pruned, ...]:
        """Forget a run that has ended: its rows, its uploads, and the blobs that nothing else names or holds.

        Its events go first, page by page, as they would in time; all else of it in one transaction. If the server dies
        in between, blobs are left that no row names: they go with the next start. ``operator`` is who
        wants it, for the log.

        Raises:
            RecordMissingError: no such run.
            ConflictError: if it has not ended.
            UnavailableError: if it is just ending.
        """
        services = self._services
        async with self._turn:
            await services.reader.run(_require_ended, run)
            if run in set(self._active()):  # its end is durable, but not yet known to all that were at work for it
                raise UnavailableError("run.ending", f"run {run} is just ending", "try again", retry_after_s=0.1)
            held = await services.reader.run(event_log.held, run)
            while await services.writer.run(_prune_page, run):
                pass
            named = await services.writer.run(_delete_ended, run)
            log.info("run %s deleted by operator %s", run, operator, extra={"run": run})
            uploads = await self._drop_uploads(run, dry_run=False)
            blobs = Pruned("models", run, *await self._remove_spare(named))
        removed = (Pruned("events", run, held.count, held.stored_bytes), uploads, blobs)
        return tuple(one for one in removed if one.count)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_s)
            try:
                await self.tidy()
            except (ServerError, OSError) as error:
                log.warning("storage could not be tidied, it is tried again later: %s", error)

    async def _uploads(self, *, dry_run: bool) -> list[Pruned]:
        """Uploads of runs that have ended."""
        held = await self._services.call(self._services.spool.runs)
        return [await self._drop_uploads(run, dry_run=dry_run) for run in held if run not in set(self._active())]

    async def _drop_uploads(self, run: str, *, dry_run: bool) -> Pruned:
        services = self._services
        held = await services.call(services.spool.held, run)
        if not dry_run:
            await services.call(services.spool.drop_run, run)
        return Pruned("uploads", run, held.files, held.stored_bytes)

    async def _events(self, *, dry_run: bool) -> list[Pruned]:
        """The logs of runs that ended long ago."""
        before = self._services.clock() - self._settings.keep_ended_s
        logs = await self._services.reader.run(lambda connection: runs.ended_with_events(connection, before=before))
        found = []
        for run in logs:
            held = await self._services.reader.run(event_log.held, run)
            found.append(Pruned("events", run, held.count, held.stored_bytes))
            while not dry_run and await self._services.writer.run(_prune_page, run):
                pass
        return found

    async def _credentials(self, *, dry_run: bool) -> list[Pruned]:
        """Certificates and join tokens that expired long ago."""
        now, keep_s, found = self._services.clock(), self._settings.keep_credentials_s, []
        for kind, store, kept_s in (
            ("certificates", certificates, max(keep_s, self._renewal_grace_s)),
            ("join tokens", tokens, keep_s),
        ):
            before = now - kept_s
            count = await self._services.reader.run(partial(store.count_expired, expired_before=before))
            if count:
                found.append(Pruned(kind, "", count, 0))
            prune = partial(store.prune, expired_before=before, most=_PAGE_ROWS)
            while not dry_run and count and await self._services.writer.run(prune) == _PAGE_ROWS:
                pass
        return found

    async def _blobs(self, *, dry_run: bool, fresh_s: float) -> list[Pruned]:
        """Blobs that are not to be kept."""
        services = self._services
        now = services.clock()
        keep, before = services.keep_models, now - self._settings.keep_ended_s
        spare: dict[str, int] = {}
        there = await services.call(lambda: {name: services.blobs.facts(name) for name in services.blobs.names()})

        def work(connection: Connection) -> None:
            kept = models.to_keep(connection, keep=keep, ended_before=before) | services.leases.held(now)
            fresh = {name for name, facts in there.items() if facts is not None and facts.made_at > now - fresh_s}
            kept |= models.unnamed(connection, sorted(fresh - kept))
            for name, facts in there.items():
                if facts is not None and name not in kept and (dry_run or services.blobs.set_aside(name)):
                    spare[name] = facts.stored_bytes

        await services.writer.run(work)
        if not dry_run:
            await services.call(services.blobs.sweep)
        return [Pruned("models", "", len(spare), sum(spare.values()))] if spare else []

    async def _remove_spare(self, names: Collection[str]) -> tuple[int, int]:
        """Remove those of these blobs that nothing names or holds; how many that were, and their bytes."""
        services = self._services
        there = await services.call(lambda: {name: services.blobs.facts(name) for name in names})
        spare: list[int] = []

        def work(connection: Connection) -> None:
            unnamed = models.unnamed(connection, names) - services.leases.held(services.clock())
            for name in sorted(unnamed):
                facts = there[name]
                if facts is not None and services.blobs.set_aside(name):
                    spare.append(facts.stored_bytes)

        await services.writer.run(work)
        await services.call(services.blobs.sweep)
        return len(spare), sum(spare)


def _require_ended(connection: Connection, run: str) -> None:
    status = runs.get(connection, run).status
    if not RunStatus(status).ended:
        raise ConflictError("run.active", f"run {run} is {status}", f"cancel it first: atoll run cancel {run}")


def _delete_ended(connection: Connection, run: str) -> frozenset[str]:
    _require_ended(connection, run)
    return deletion.delete_run(connection, run)


def _prune_page(connection: Connection, run: str) -> bool:
    """Remove some of a run's events, its snapshots with the last of them; whether there are more."""
    last = event_log.next_seq(connection, run)
    first = event_log.first_seq(connection, run)
    if first is None or first >= last:
        snapshots.drop(connection, run)
        return False
    event_log.prune(connection, run, below=min(last, first + _PAGE_EVENTS))
    return True
