"""Removes unneeded data: before runs are resumed, then every ``sweep_s``, and at an operator's request.

| what | when it goes |
|---|---|
| uploads of a run | with their round; leftovers of a killed server, here |
| event log and snapshots of a run | ``keep_ended_days`` after its end |
| models and optimiser states | see ``stores.models.to_keep`` |
| expired certificates | after ``keep_credentials_days`` or ``renewal_grace_s``, the longer of the two |
| join tokens that expired unused | after ``keep_credentials_days`` |
| entries of the audit log | after ``keep_audit_days``, by whole days |
| blobs that no row names | after an hour: a run may be about to name them |
| an ended run with everything it has | only when an operator deletes it (``delete_run``) |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from atoll.server.config.storage_settings import DAY_S, StorageSettings
from atoll.server.errors import ConflictError, ServerError, UnavailableError
from atoll.server.rounds import RunStatus
from atoll.server.runs.services import Services
from atoll.server.stores import (
    audit,
    certificates,
    deletion,
    event_log,
    models,
    runs,
    schema_version,
    snapshots,
    tokens,
)

log = logging.getLogger(__name__)

_FRESH_S = 3600.0
_PAGE_ROWS = 2000
"""Certificates or join tokens removed in one transaction."""
_PAGE_EVENTS = 2000
"""Events removed in one transaction, which bounds how long other writes wait."""


@dataclass(frozen=True)
class Pruned:
    """Items of one kind that were removed, or would be; ``run`` is empty if they belong to no run."""

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
        renewal_grace_s: how long an expired certificate can still be renewed; its record is kept until then, since it
            decides about the renewal.
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
        """Start to tidy periodically."""
        self._task = asyncio.create_task(self._run(), name="janitor")

    async def stop(self) -> None:
        """Stop, after the current removal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause removals inside the context; enters when the current removal is done."""
        async with self._turn:
            yield

    async def tidy(self, *, dry_run: bool = False, fresh_s: float = _FRESH_S) -> tuple[Pruned, ...]:
        """Remove unneeded data, and return what was removed.

        Args:
            dry_run: remove nothing.
            fresh_s: age in seconds up to which blobs that no row refers to are kept.
        """
        async with self._turn:
            await self._services.writer.run(schema_version.touch)  # fails if another server is active now
            found = [
                *await self._uploads(dry_run=dry_run),
                *await self._events(dry_run=dry_run),
                *await self._credentials(dry_run=dry_run),
                *await self._audit(dry_run=dry_run),
                *await self._blobs(dry_run=dry_run, fresh_s=fresh_s),
            ]
        if found and not dry_run:
            total = sum(one.stored_bytes for one in found)
            log.info("storage: removed %d objects and rows, %d bytes", sum(one.count for one in found), total)
        return tuple(found)

    async def delete_run(self, run: str, *, operator: str) -> tuple[Pruned, ...]:
        """Delete a run that has ended: its rows, its uploads, and the blobs that nothing else refers to or holds.

        Its events are deleted first, page by page, then all other rows in one transaction. If the server dies in
        between, the next start removes blobs that no row refers to. The log names the ``operator``.

        Raises:
            RecordMissingError: no such run.
            ConflictError: if it has not ended.
            UnavailableError: if it is ending at this moment.
        """
        services = self._services
        async with self._turn:
            await services.reader.run(_require_ended, run)
            if run in set(self._active()):  # its end is durable, but its tasks still run
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
                log.warning("storage was not tidied; the next sweep tries again: %s", error)

    async def _uploads(self, *, dry_run: bool) -> list[Pruned]:
        """Remove uploads of runs that have ended."""
        held = await self._services.call(self._services.spool.runs)
        return [await self._drop_uploads(run, dry_run=dry_run) for run in held if run not in set(self._active())]

    async def _drop_uploads(self, run: str, *, dry_run: bool) -> Pruned:
        services = self._services
        held = await services.call(services.spool.held, run)
        if not dry_run:
            await services.call(services.spool.drop_run, run)
        return Pruned("uploads", run, held.files, held.stored_bytes)

    async def _events(self, *, dry_run: bool) -> list[Pruned]:
        """Remove the logs of runs that ended long ago."""
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
        """Remove certificates and join tokens that expired long ago."""
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

    async def _audit(self, *, dry_run: bool) -> list[Pruned]:
        """Remove old entries of the audit log, at most once a day, since each removal adds an entry."""
        now = self._services.clock()
        before = (now - self._settings.keep_audit_s) // DAY_S * DAY_S
        count = await self._services.reader.run(partial(audit.count_old, before=before))
        if count and not dry_run:
            await self._services.writer.run(partial(audit.prune, before=before, now=now))
        return [Pruned("audit entries", "", count, 0)] if count else []

    async def _blobs(self, *, dry_run: bool, fresh_s: float) -> list[Pruned]:
        """Remove blobs that need not be kept."""
        services = self._services
        now = services.clock()
        keep, before = services.keep_models, now - self._settings.keep_ended_s
        spare: dict[str, int] = {}
        there = await services.call(services.blobs.stored)

        def work(connection: Connection) -> None:
            kept = models.to_keep(connection, keep=keep, ended_before=before) | services.leases.held(now)
            fresh = {name for name, facts in there.items() if facts.made_at > now - fresh_s}
            kept |= models.unnamed(connection, sorted(fresh - kept))
            for name, facts in there.items():
                if name not in kept and (dry_run or services.blobs.set_aside(name)):
                    spare[name] = facts.stored_bytes

        await services.writer.run(work)
        if not dry_run:
            await services.sweep_blobs()
        return [Pruned("models", "", len(spare), sum(spare.values()))] if spare else []

    async def _remove_spare(self, names: Collection[str]) -> tuple[int, int]:
        """Remove the blobs that nothing refers to or holds; returns their number and bytes."""
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
        await services.sweep_blobs()
        return len(spare), sum(spare)


def _require_ended(connection: Connection, run: str) -> None:
    status = runs.get(connection, run).status
    if not RunStatus(status).ended:
        raise ConflictError("run.active", f"run {run} is {status}", f"cancel it first: atoll run cancel {run}")


def _delete_ended(connection: Connection, run: str) -> frozenset[str]:
    _require_ended(connection, run)
    return deletion.delete_run(connection, run)


def _prune_page(connection: Connection, run: str) -> bool:
    """Remove a page of a run's events, and its snapshots with the last page; returns whether there are more events."""
    last = event_log.next_seq(connection, run)
    first = event_log.first_seq(connection, run)
    if first is None or first >= last:
        snapshots.drop(connection, run)
        return False
    event_log.prune(connection, run, below=min(last, first + _PAGE_EVENTS))
    return True
