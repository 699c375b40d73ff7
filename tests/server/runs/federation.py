"""A coordinator with real stores, spool and folding, and participants that call it without gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection

from atoll.server.access.certificates import CertificateBook
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.disk.space import Room
from atoll.server.errors import TooLateError
from atoll.server.identity import Authority, ParticipantKind
from atoll.server.ingest.commit import commit_small_update, commit_upload
from atoll.server.ingest.coordinator_api import Commit, ReportReceipt, UploadGrant
from atoll.server.ingest.local_node import LocalNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.rounds import DeadlinePassed, Phase, RunState
from atoll.server.runs.active_runs import ActiveRun
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.evaluators import Evaluator
from atoll.server.runs.instructions import Instruction, serialised
from atoll.server.runs.services import Services
from atoll.server.runs.session import Introduction, Session
from atoll.server.runs.sessions import Sessions
from atoll.server.runs.submission import Submitted
from atoll.server.stores import Store, participants, rounds, runs
from atoll.server.telemetry.observer import NO_OBSERVER, Observer
from atoll.wire.chunks import Chunk, ElementRange, header_of, update_digest
from atoll.wire.encoding import Encoding
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.v1 import participation_pb2, transfer_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import job

__all__ = ["Client", "Federation", "job"]

LAYOUT = Layout((TensorSpec("w", (20,), Dtype.FLOAT32), TensorSpec("b", (4,), Dtype.FLOAT32)))
NODE = "main"
Values = npt.NDArray[np.float32]
Key = participation_pb2.RoundKey


def update_values(seed: int) -> Values:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def parsed(instruction: Instruction | None) -> participation_pb2.CheckInResponse:
    """Parse an instruction like its participant."""
    assert instruction is not None
    return participation_pb2.CheckInResponse.FromString(serialised(instruction))


class Client:
    """One participant: its check-in session and its messages."""

    def __init__(self, federation: Federation, name: str) -> None:
        self.federation = federation
        self.name = name
        self.session: Session | None = None

    async def check_in(
        self,
        *,
        examples: int = 10,
        can_evaluate: bool = True,
        resuming: tuple[Key, ...] = (),
        encodings: Iterable[Encoding] = Encoding,
        unary: bool = False,
    ) -> None:
        """Open a session like the check-in stream does."""
        introduction = Introduction(
            examples=examples,
            encodings=frozenset(encodings),
            can_evaluate=can_evaluate,
            resuming=frozenset((key.run, key.round, key.attempt) for key in resuming),
            unary=unary,
        )
        coordinator, sessions = self.federation.coordinator, self.federation.services.sessions
        membership = await coordinator.introduced(self.name, introduction)
        self.session = sessions.connect(self.name, introduction, lambda: None, membership)

    def leave(self) -> None:
        """The connection breaks."""
        assert self.session is not None
        self.federation.services.sessions.disconnect(self.session)

    async def next(self, kind: str) -> Any:
        """The next instruction, which must be of this kind."""
        assert self.session is not None
        message = parsed(await asyncio.wait_for(self.session.outbox.get(), WAIT_S))
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    async def invitation(self) -> participation_pb2.Participate:
        """The next invitation; other instructions before it are skipped."""
        assert self.session is not None
        while True:
            message = parsed(await self.session.outbox.get())
            if message.HasField("participate"):
                return message.participate

    def waiting(self) -> Instruction:
        """The next queued instruction; there must be one."""
        assert self.session is not None
        instruction = self.session.outbox.take()
        assert instruction is not None
        return instruction

    @property
    def pending(self) -> int:
        """Instructions that wait to be read."""
        assert self.session is not None
        return len(self.session.outbox)

    async def reply(self, key: Key, verdict: str, reason: str = "") -> None:
        number = participation_pb2.TaskReply.Verdict.Value(f"VERDICT_{verdict.upper()}")
        answer = participation_pb2.TaskReply(key=key, verdict=number, reason=reason)
        await self.federation.coordinator.replied(self.name, answer)

    def spool(self, key: Key, values: Values, first: int = 0) -> str:
        """Write and commit an update, from its element ``first`` on, like a transfer service; returns its digest."""
        spool, payload = self.federation.services.spool, values.tobytes()
        header = header_of(ElementRange.run(first, values.size), Encoding.FLOAT32, payload)
        upload = UploadRef(key.run, key.round, key.attempt, self.name, "0" * 32)
        segment = spool.open_segment(upload)
        segment.append(header, memoryview(payload), float(np.abs(values).max()), float((values**2).sum()))
        segment.close()
        return commit_upload(spool, upload, values.size, update_digest([header]), first).digest

    def spool_small(self, key: Key, values: Values) -> str:
        """Write and commit an update from a report, like a transfer service; returns its digest."""
        payload = values.tobytes()
        chunk = Chunk(header_of(ElementRange.run(0, values.size), Encoding.FLOAT32, payload), memoryview(payload), None)
        upload = UploadRef(key.run, key.round, key.attempt, self.name, "0" * 32)
        grant = UploadGrant(elements=values.size, max_abs=32.0, max_bytes=1 << 20, max_weight=100, max_uploads=8)
        spool, digest = self.federation.services.spool, update_digest([chunk.header])
        return commit_small_update(spool, upload, grant, digest, chunk).digest

    async def report(
        self, key: Key, values: Values, weight: int = 10, *, first: int = 0, **metrics: float
    ) -> ReportReceipt:
        try:
            digest = await asyncio.to_thread(self.spool, key, values, first)
        except FileNotFoundError:
            raise TooLateError("round.over", "the round's uploads have been removed") from None
        return await self.claim(key, digest, weight, metrics=metrics)

    async def claim(
        self,
        key: Key,
        digest: str,
        weight: int = 10,
        *,
        metrics: Mapping[str, float] | None = None,
        evaluation: Mapping[str, float] | None = None,
    ) -> ReportReceipt:
        """Report an update that is in the spool, and optionally an evaluation of the previous model."""
        request = transfer_pb2.ReportRequest(
            round=key, upload_id="0" * 32, digest=digest, weight=weight, metrics=metrics
        )
        if evaluation is not None:
            request.evaluation.update(evaluation)
            request.evaluation_weight = weight
        return await self._commit(request)

    async def evaluate(self, key: Key, weight: int = 5, **metrics: float) -> ReportReceipt:
        return await self._commit(transfer_pb2.ReportRequest(round=key, evaluation=metrics, evaluation_weight=weight))

    async def refused(self, key: Key) -> ReportReceipt:
        """Send an update that the transfer service refuses for its content."""
        request = transfer_pb2.ReportRequest(round=key, upload_id="0" * 32, digest="ab" * 32, weight=10)
        return await self.federation.coordinator.commit(Commit(self.name, request, NODE, rejection="not finite"))

    async def _commit(self, request: transfer_pb2.ReportRequest) -> ReportReceipt:
        commit = Commit(self.name, request, NODE, payload_bytes=LAYOUT.size_bytes)
        async with asyncio.timeout(WAIT_S):  # wait_for of Python 3.11 loses a cancellation that comes with the answer
            return await self.federation.coordinator.commit(commit)


@dataclass
class Federation:
    """The objects of one server process."""

    store: Store
    services: Services
    coordinator: Coordinator
    node: IngestNode
    submitted: dict[str, ActiveRun] = field(default_factory=dict)

    async def client(
        self, name: str, kind: ParticipantKind = ParticipantKind.EDGE, organisation: str = "acme"
    ) -> Client:
        """Record a participant; ``name`` is padded to an id."""
        full = f"p{name:a<12}"

        def work(connection: Connection) -> None:
            if participants.get(connection, full) is None:
                record = participants.Participant(full, organisation, kind, enrolled_at=time.time())
                participants.add(connection, record)

        await self.store.writer.run(work)
        return Client(self, full)

    async def clients(self, *names: str) -> list[Client]:
        """Participants that have checked in."""
        made = [await self.client(name) for name in names]
        for one in made:
            await one.check_in()
        return made

    async def submit(self, job_toml: bytes, values: Values | None = None) -> str:
        return (await self.submitted_as(job_toml, values)).run

    async def submitted_as(self, job_toml: bytes, values: Values | None = None) -> Submitted:
        """Submit a run; the answer has its warnings."""
        with self.store.blobs.create() as writer:
            writer.write(bytes(LAYOUT.size_bytes) if values is None else values.tobytes())
            blob = writer.commit().name
        submitted = await self.coordinator.submit(
            job_toml=job_toml, file_name="job.toml", layout=LAYOUT, initial_blob=blob, operator="admin"
        )
        run = submitted.run
        self.submitted[run] = self.active(run)
        return submitted

    def active(self, run: str) -> ActiveRun:
        found = self.coordinator.active(run)
        assert found is not None
        return found

    async def state(self, run: str, until: Callable[[RunState], bool]) -> RunState:
        """Wait until this holds of the run's state; return it. The run must not have ended before."""
        return await self._reached(self.active(run), until)

    async def deadline(self, run: str) -> None:
        """Wait until no member is outstanding, then pass the deadline of the run's open round."""

        def all_answered(state: RunState) -> bool:
            live = state.round
            return live is not None and live.phase is Phase.OPEN and not live.roster.outstanding

        live = (await self.state(run, all_answered)).round
        assert live is not None
        await self.active(run).driver.post(DeadlinePassed(live.key))

    async def _reached(self, active: ActiveRun, until: Callable[[RunState], bool]) -> RunState:
        async with asyncio.timeout(WAIT_S):
            while not until(active.driver.state):
                await active.driver.changed.wait()
        return active.driver.state

    async def ended(self, run: str) -> runs.Run:
        """The run's row once it has ended and all cleanup is done."""
        active = self.submitted.get(run) or self.active(run)
        await self._reached(active, lambda state: state.status.ended)
        await asyncio.wait_for(active.performer._tasks.ended(lambda _: True), WAIT_S)
        return await self.store.reader.run(lambda connection: runs.get(connection, run))

    async def rounds(self, run: str) -> tuple[rounds.Round, ...]:
        return await self.store.reader.run(lambda connection: rounds.newest(connection, run, limit=1000))

    async def members(self, run: str, number: int = 0, attempt: int = 0) -> dict[str, tuple[str, str]]:
        found = await self.store.reader.run(lambda connection: rounds.members_of(connection, run, number, attempt))
        return {member.participant: (member.status, member.detail) for member in found}

    def model(self, blob: str) -> Values:
        with self.store.blobs.open(blob) as opened:
            return np.frombuffer(bytes(opened.read(0, LAYOUT.size_bytes)), np.float32)

    def blobs(self) -> set[str]:
        return set(self.store.blobs.names())


@contextlib.asynccontextmanager
async def opened(
    data: Path,
    *,
    silence_s: float = 0.05,
    silo_silence_s: float = 60.0,
    keep_models: int = 3,
    evaluators: Mapping[str, Evaluator] | None = None,
    room: Room | None = None,
    storage: StorageSettings | None = None,
    restored_at: float = 0.0,
    clock: Callable[[], float] = time.time,
    observer: Observer = NO_OBSERVER,
) -> AsyncIterator[Federation]:
    """A server process from its start to its end, on a directory that may have served before."""
    store = Store.open(data)
    with ThreadPoolExecutor(4) as executor:
        spool = Spool(data / "spool", room)
        node = IngestNode(NODE, spool)
        nodes = NodePool()
        nodes.add(LocalNode(node, executor))
        services = Services(
            writer=store.writer,
            reader=store.reader,
            blobs=store.blobs,
            spool=spool,
            sessions=Sessions(),
            nodes=nodes,
            executor=executor,
            evaluators=evaluators or {},
            clock=clock,
            observer=observer,
            silence_s=silence_s,
            silo_silence_s=silo_silence_s,
            keep_models=keep_models,
            room=room or Room(data, 0),
        )
        authority = Authority.open(data / "ca", now=time.time())
        book = CertificateBook(authority, store.writer, store.reader, time.time)
        coordinator = Coordinator(services, book, storage or StorageSettings(), insecure=False, restored_at=restored_at)
        await coordinator.start()
        try:
            yield Federation(store, services, coordinator, node)
        finally:
            await asyncio.wait_for(coordinator.stop(), WAIT_S)
            store.close()
