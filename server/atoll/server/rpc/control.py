"""ControlService: the operators' calls about runs, models and the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from sqlalchemy import Connection

import atoll.server
from atoll.server.control import message_of
from atoll.server.errors import InvalidRequestError, NotFoundError, UnavailableError
from atoll.server.rounds import Phase
from atoll.server.rpc import bounds, views
from atoll.server.rpc.access_handlers import AccessHandlers
from atoll.server.rpc.audit_handlers import AuditHandlers
from atoll.server.rpc.authentication import Context, Watch
from atoll.server.rpc.log_handlers import LogHandlers
from atoll.server.rpc.operator_handlers import page_size
from atoll.server.rpc.privacy_handlers import PrivacyHandlers
from atoll.server.rpc.project_handlers import ProjectHandlers
from atoll.server.rpc.scoping import Scope, current_scope
from atoll.server.rpc.watching import LiveRound, ShownMembers
from atoll.server.runs.active_runs import ActiveRun
from atoll.server.runs.janitor import Pruned
from atoll.server.runs.submission import upload_owner
from atoll.server.stores import BlobWriter, RecordMissingError, models, participants, rounds, runs
from atoll.server.stores.paging import mark
from atoll.server.telemetry.refusal_log import one_line
from atoll.wire.digest import BlobManifest
from atoll.wire.messages import PROTOCOL, layout_from_proto, manifest_from_proto
from atoll.wire.v1 import control_pb2, tensors_pb2
from atoll.wire.v1.control_pb2_grpc import ControlServiceServicer

log = logging.getLogger(__name__)

MAX_FILE_NAME_CHARS = 256
MAX_ROUNDS = 1000
"""Maximum number of attempts in one answer; the newest are shown."""
MAX_MEMBERS = 10_000
"""Maximum number of members in one answer, taken from the newest attempts; older attempts are shown without members."""
MODEL_LEASE_S = 3600.0
"""Seconds that an uploaded model is kept before a run begins with it."""
_UPLOADING = "upload in work"
"""Owner of the leases of models that are being uploaded."""
WATCH_INTERVAL_S = 0.05
"""Minimum seconds between two messages to a watcher; changes in between are sent together."""
MAX_WATCH_PACE_S = 10.0
"""Maximum seconds between two messages that a watcher can request; it also learns of the run's end that much later."""
WATCH_PAUSE = 4
"""The server pauses after a message for this multiple of the time that the message took to make."""


class ControlService(
    AccessHandlers, AuditHandlers, LogHandlers, PrivacyHandlers, ProjectHandlers, ControlServiceServicer
):
    """All handlers; those for runs, models and the server are here, the others in the base classes."""

    async def UploadModel(
        self, request_iterator: AsyncIterator[control_pb2.UploadModelRequest], context: Context
    ) -> control_pb2.UploadModelResponse:
        """Take the initial model, chunk by chunk in order."""
        await self._authenticator.operator(context)
        watch = Watch(self._authenticator, context)
        async with contextlib.aclosing(watch.over(request_iterator)) as requests:
            first = await anext(requests, None)
            if first is None:
                raise _incomplete(0)
            manifest = manifest_from_proto(first.manifest)
            call = self._services.call
            await call(self._services.room.require, "this model", manifest.size_bytes)
            until = self._services.clock() + MODEL_LEASE_S
            leases = self._services.leases
            leases.hold(_UPLOADING, manifest.name, until=until)  # the project owns it only once all of it has arrived
            with await call(self._services.blobs.create, chunk_bytes=manifest.chunk_bytes) as writer:
                await call(_write_chunk, writer, manifest, first, 0)
                expected = 1
                async for request in requests:
                    await call(_write_chunk, writer, manifest, request, expected)
                    expected += 1
                if expected != manifest.chunk_count:
                    raise _incomplete(expected)
                stored = await call(writer.commit)
                leases.hold(upload_owner(current_scope().place), stored.name, until=until)
        return control_pb2.UploadModelResponse(blob=stored.name)

    async def SubmitRun(self, request: control_pb2.SubmitRunRequest, context: Context) -> control_pb2.SubmitRunResponse:
        """Begin a run."""
        operator = await self._authenticator.operator(context)
        found = await self._coordinator.submit(
            job_toml=request.job_toml,
            file_name=request.file_name[:MAX_FILE_NAME_CHARS],
            layout=layout_from_proto(request.layout),
            initial_blob=request.initial_blob,
            operator=operator,
            project=current_scope().place,
        )
        _log_order(found.run, "submitted", operator)
        for warning in found.warnings:
            log.warning("run %s: %s", found.run, warning)
        return control_pb2.SubmitRunResponse(run=found.run, warnings=found.warnings)

    async def ListRuns(self, request: control_pb2.ListRunsRequest, context: Context) -> control_pb2.ListRunsResponse:
        """List runs, the newest first."""
        await self._authenticator.operator(context)
        limit = page_size(request.limit)
        found = await self._services.reader.run(
            runs.listed, project=current_scope().project, after=request.after, limit=limit
        )
        return control_pb2.ListRunsResponse(
            runs=[views.run_summary(run) for run in found],
            next=mark(found[-1].created_at, found[-1].id) if len(found) == limit else "",
        )

    async def GetRun(self, request: control_pb2.GetRunRequest, context: Context) -> control_pb2.GetRunResponse:
        """Describe a run with all its rounds, or with one of them."""
        await self._authenticator.operator(context)
        only = request.round if request.HasField("round") else None
        active = self._coordinator.active(request.run)
        waits = self._waits(active)
        seen = self._live_round(active)  # read first: a round that ends now is in one
        live = None if seen is None else await self._services.call(seen.summary, members=request.members)

        def work(connection: Connection) -> control_pb2.GetRunResponse:
            run = runs.get(connection, request.run)
            newest = rounds.newest(connection, run.id, limit=MAX_ROUNDS, only=only, since=request.since)
            numbering = views.RoundNumbering.of(run.job_toml)
            shown = bounds.newest_rounds(
                [numbering.numbered(views.past_round(row, (), {}), row.version) for row in newest]
            )
            if request.members:
                shown = bounds.with_members(shown, _members_of(connection, newest))
            summary = views.run_summary(run)
            summary.reason = "; ".join(part for part in (summary.reason, shown.omission, waits) if part)
            return control_pb2.GetRunResponse(
                summary=summary,
                rounds=shown.rounds,
                job_toml=run.job_toml,
                seed=run.seed,
                best=views.best_model(connection, run),
            )

        response = await self._services.reader.run(work)
        response.connected = self._connected(current_scope())
        if live is not None and only in (None, live.round) and not _has_ended(live, response.rounds):
            ended = [row for row in response.rounds if (row.round, row.attempt) != (live.round, live.attempt)]
            del response.rounds[:]
            response.rounds.extend([*ended, live])
        return response

    async def WatchRun(
        self, request: control_pb2.WatchRunRequest, context: Context
    ) -> AsyncIterator[control_pb2.WatchRunResponse]:
        """Send the run now and at every change until it has ended.

        Messages are made in threads. The longer one takes, the longer the pause after it: a cohort can have thousands
        of members.
        """
        await self._authenticator.operator(context)
        watch, shown, loop = Watch(self._authenticator, context), ShownMembers(), asyncio.get_running_loop()
        watch.only_while(partial(self._require_seen, current_scope(), request.run, context))
        while True:
            began = loop.time()
            active = self._coordinator.active(request.run)
            changed = active.driver.changed if active is not None else None
            run = await self._services.reader.run(lambda connection: runs.get(connection, request.run))
            message = control_pb2.WatchRunResponse(
                summary=views.run_summary(run), connected=self._connected(current_scope())
            )
            message.summary.reason = "; ".join(part for part in (run.reason, self._waits(active)) if part)
            seen = self._live_round(active)
            pages = iter(()) if seen is None else shown.pages(seen)
            last = await self._last_round(run.id) if active is None else await self._services.call(next, pages, None)
            while last is not None:
                following = await self._services.call(next, pages, None)
                message.round.CopyFrom(last)
                message.more = following is not None
                if following is None:
                    break
                yield message
                last = following
            yield message
            took_s = loop.time() - began
            if active is None or changed is None:
                return
            await watch.until(changed)
            if self._coordinator.leaving:
                raise UnavailableError(
                    "server.stopping", "the server is stopping", "watch again when it is back", retry_after_s=1.0
                )
            await asyncio.sleep(_watch_pause_s(took_s, request.pace_s))

    async def _require_seen(self, scope: Scope, run: str, context: Context) -> None:
        """Check that the operator still has a role in the run's project.

        Raises:
            RecordMissingError: if it has lost the role.
        """
        caller = await self._authenticator.identify(context)
        if not scope.is_still_allowed(caller.rights):
            raise RecordMissingError("run", run)

    async def PauseRun(self, request: control_pb2.PauseRunRequest, context: Context) -> control_pb2.PauseRunResponse:
        """Pause a run: no further round begins."""
        operator = await self._authenticator.operator(context)
        await self._coordinator.pause(request.run)
        _log_order(request.run, "paused", operator)
        return control_pb2.PauseRunResponse(summary=await self._summary(request.run))

    async def ResumeRun(self, request: control_pb2.ResumeRunRequest, context: Context) -> control_pb2.ResumeRunResponse:
        """Resume a paused run."""
        operator = await self._authenticator.operator(context)
        await self._coordinator.resume(request.run)
        _log_order(request.run, "resumed", operator)
        return control_pb2.ResumeRunResponse(summary=await self._summary(request.run))

    async def CancelRun(self, request: control_pb2.CancelRunRequest, context: Context) -> control_pb2.CancelRunResponse:
        """Cancel a run now."""
        operator = await self._authenticator.operator(context)
        await self._coordinator.cancel(request.run, request.reason)
        _log_order(request.run, "cancelled", operator, request.reason)
        return control_pb2.CancelRunResponse(summary=await self._summary(request.run))

    async def ExtendRun(self, request: control_pb2.ExtendRunRequest, context: Context) -> control_pb2.ExtendRunResponse:
        """Continue a run that has ended."""
        operator = await self._authenticator.operator(context)
        await self._coordinator.extend(request.run, request.rounds)
        _log_order(request.run, f"extended by {request.rounds} rounds", operator)
        return control_pb2.ExtendRunResponse(summary=await self._summary(request.run))

    async def DeleteRun(self, request: control_pb2.DeleteRunRequest, context: Context) -> control_pb2.DeleteRunResponse:
        """Delete a run that has ended."""
        operator = await self._authenticator.operator(context)
        removed = await self._coordinator.janitor.delete_run(request.run, operator=operator)
        return control_pb2.DeleteRunResponse(removed=map(_pruned, removed))

    async def GetRunModel(
        self, request: control_pb2.GetRunModelRequest, context: Context
    ) -> control_pb2.GetRunModelResponse:
        """Layout and blob of a released model, or of the mean of the models so far."""
        operator = await self._authenticator.operator(context)
        version = request.round if request.HasField("round") else None

        def work(connection: Connection) -> tuple[runs.Run, models.Model | None]:
            run = runs.get(connection, request.run)
            if version is None:
                return run, models.latest(connection, run.id)
            return run, models.of_version(connection, run.id, version)

        run, model = await self._services.reader.run(work)
        if model is None:
            raise NotFoundError(
                "model.missing",
                f"run {run.id} has released {run.rounds_released} models; there is no model {version}",
                f"ask for one of 0 (the initial model) to {run.rounds_released}",
            )
        blob = _averaged(run, model) if request.averaged else model.blob
        if not await self._services.call(self._services.blobs.exists, blob):
            raise NotFoundError(
                "model.pruned",
                f"model {model.version} of run {run.id} is no longer kept",
                "ask for a newer one, or start the server with a larger --keep-models",
            )
        layout = tensors_pb2.Layout.FromString(run.layout)
        self._downloads.expect(operator, blob)
        return control_pb2.GetRunModelResponse(
            model=tensors_pb2.TensorSet(name="model", layout=layout, blob=blob), round=model.version
        )

    async def GetServerInfo(
        self,
        request: control_pb2.GetServerInfoRequest,
        context: Context,
    ) -> control_pb2.GetServerInfoResponse:
        """Describe the server: version, clock, disk."""
        await self._authenticator.operator(context)
        return control_pb2.GetServerInfoResponse(
            version=atoll.server.__version__,
            protocol=PROTOCOL,
            now=self._services.clock(),
            started_at=self._facts.started_at,
            connected=self._connected(current_scope()),
            workers=self._facts.workers,
            disk_free_bytes=shutil.disk_usage(self._facts.data).free,
            evaluators=sorted(self._services.evaluators),
            disk_reserve_bytes=self._services.room.reserve_bytes,
        )

    async def PruneStorage(
        self, request: control_pb2.PruneStorageRequest, context: Context
    ) -> control_pb2.PruneStorageResponse:
        """Remove files and rows that are no longer needed."""
        operator = await self._authenticator.operator(context)
        found = await self._coordinator.janitor.tidy(dry_run=request.dry_run)
        if not request.dry_run:
            log.info("storage pruned by operator %s", operator)
        return control_pb2.PruneStorageResponse(pruned=map(_pruned, found))

    def _waits(self, active: ActiveRun | None) -> str:
        """The reason why a running run waits; empty if it does not."""
        if active is None:
            return ""
        if active.performer.trouble:
            return active.performer.trouble
        shortage = self._services.room.shortage()
        return f"uploads are refused: {shortage}" if shortage else ""

    def _live_round(self, active: ActiveRun | None) -> LiveRound | None:
        """The open round as it is now."""
        live = None if active is None else active.driver.state.round
        if active is None or live is None:
            return None
        numbering = views.RoundNumbering(active.spec.aggregation.fragments, active.spec.evaluation.every)
        metrics = active.performer.server_metrics(live.key)
        return LiveRound(active.driver.state, live, metrics, numbering, self._services.clock())

    async def _last_round(self, run_id: str) -> control_pb2.RoundSummary | None:
        def work(connection: Connection) -> control_pb2.RoundSummary | None:
            for last in rounds.newest(connection, run_id, limit=1):
                members = rounds.members_of(connection, run_id, last.round, last.attempt)
                enrolled = participants.of(connection, sorted({member.participant for member in members}))
                numbering = views.RoundNumbering.of(runs.get(connection, run_id).job_toml)
                return bounds.fitted(numbering.numbered(views.past_round(last, members, enrolled), last.version))
            return None

        return await self._services.reader.run(work)

    async def _summary(self, run_id: str) -> control_pb2.RunSummary:
        return views.run_summary(await self._services.reader.run(lambda connection: runs.get(connection, run_id)))


def _averaged(run: runs.Run, model: models.Model) -> str:
    """The blob of the mean of the models up to this one."""
    if model.average_blob is None:
        raise NotFoundError(
            "model.average",
            f"run {run.id} keeps no mean of its models up to model {model.version}",
            "ask for that beside the newest model, of a run whose job has [iterate_averaging]",
        )
    return model.average_blob


def _has_ended(live: control_pb2.RoundSummary, rows: Iterable[control_pb2.RoundSummary]) -> bool:
    """Whether the rows say that the attempt ``live``, which was read before them, has ended."""
    over = (Phase.RELEASED, Phase.ABANDONED)
    return any((row.round, row.attempt) == (live.round, live.attempt) and row.phase in over for row in rows)


def _watch_pause_s(took_s: float, asked_s: float) -> float:
    """Seconds until a watcher gets another message, from the time that the last one took and the requested pace."""
    pace_s = min(asked_s, MAX_WATCH_PACE_S) if asked_s > 0 else 0.0  # NaN: no pause requested
    return max(WATCH_INTERVAL_S, pace_s, WATCH_PAUSE * took_s)


def _log_order(run: str, done: str, operator: str, reason: str = "") -> None:
    known = {"run": run}
    log.info("run %s %s by operator %s%s", run, done, operator, f": {one_line(reason)}" if reason else "", extra=known)


def _pruned(one: Pruned) -> control_pb2.PrunedStorage:
    return message_of(control_pb2.PrunedStorage, one)


def _write_chunk(
    writer: BlobWriter, manifest: BlobManifest, request: control_pb2.UploadModelRequest, expected: int
) -> None:
    if request.index != expected:
        raise InvalidRequestError(
            "model.order", f"chunk {request.index} came, {expected} was expected", "send the chunks in order"
        )
    manifest.verify_chunk(request.index, request.payload)
    writer.write(request.payload)


def _incomplete(chunks: int) -> InvalidRequestError:
    return InvalidRequestError(
        "model.incomplete", f"the model ended after {chunks} chunks", "send all chunks that the manifest names"
    )


def _members_of(
    connection: Connection, shown: Sequence[rounds.Round]
) -> Iterator[tuple[tuple[int, int], list[control_pb2.MemberSummary]]]:
    """The members by (round, attempt), the newest first, of as many attempts as fit in the limit."""
    room = MAX_MEMBERS
    for row in reversed(shown):
        room -= row.cohort
        if room < 0:
            return
        members = rounds.members_of(connection, row.run_id, row.round, row.attempt)
        enrolled = participants.of(connection, sorted({member.participant for member in members}))
        yield (row.round, row.attempt), list(views.past_round(row, members, enrolled).members)
