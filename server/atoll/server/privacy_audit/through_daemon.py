"""Measures the noise in a real daemon's releases, by a short private run with known updates.

The coordinator, its database, spool, folding and release are those of ``atoll server``, in a temporary folder; only
participants and transport are simulated. Noise that is lost anywhere between a job and its models is thus detected.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.server.access.certificates import CertificateBook
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.disk.space import Room
from atoll.server.identity import Authority, ParticipantKind
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.coordinator_api import Commit
from atoll.server.ingest.local_node import LocalNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.run import PrivateRun
from atoll.server.privacy_audit.noise_scale import NoiseFound, noise_found
from atoll.server.privacy_audit.rehearsal import PLAIN_MEAN
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.instructions import serialised
from atoll.server.runs.services import Services
from atoll.server.runs.session import Introduction, Session
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import Store, noise_states, participants, runs
from atoll.wire.chunks import ElementRange, header_of, update_digest
from atoll.wire.encoding import Encoding
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.v1 import participation_pb2, transfer_pb2

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ELEMENTS = 1 << 15
ROUNDS = 8
WAIT_S = 60.0
_NODE = "audit"
_UPLOAD = "0" * 32


def noise_through_daemon(contract: Contract, rounds: int = ROUNDS, elements: int = ELEMENTS) -> NoiseFound:
    """Compare the noise of a daemon's releases with what a contract claims.

    The run has the contract's mechanism, noise multiplier and clip norm, one participant in each round, and at most
    ``rounds`` rounds.

    Raises:
        TimeoutError: if the run takes longer than ``WAIT_S``.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as folder:
        return asyncio.run(_measured(contract, min(rounds, contract.rounds), elements, Path(folder)))


async def _measured(contract: Contract, rounds: int, elements: int, folder: Path) -> NoiseFound:
    async with _daemon(folder, keep_models=rounds + 2) as daemon:
        async with asyncio.timeout(WAIT_S):
            ran, models = await daemon.play(
                _job(contract, rounds), elements, contract.clip, min(rounds, contract.min_separation)
            )
    released = np.diff(np.array(models, np.float64), axis=0) * (ran.divisor_weight / ran.weight_bound)
    return noise_found(ran, (released - known_update(elements, contract.clip)) / ran.clip)


def known_update(elements: int, clip: float) -> Floats:
    """The update of every participant: values of both signs, with a total norm of half the clip norm."""
    update = np.full(elements, clip / (2 * math.sqrt(elements)), np.float32)
    update[::2] *= -1
    return update


def _job(contract: Contract, rounds: int) -> bytes:
    extra = f"bands = {contract.bands}\n" if contract.mechanism == "banded" else ""
    return f"""\
[job]
name = "audit"
rounds = {rounds}
[model]
initial = "initial.safetensors"
[cohort]
size = 1
sampler = "least_recent"
quorum = 1
{PLAIN_MEAN}
[privacy]
population = "audit"
delta = {contract.delta!r}
clip = {contract.clip!r}
noise_multiplier = {contract.noise_multiplier!r}
mechanism = "{contract.mechanism}"
max_participations = {-(-rounds // contract.min_separation)}
min_separation = {contract.min_separation}
{extra}""".encode()


@dataclass
class _Daemon:
    """The parts of a server process, and a run's models by round."""

    store: Store
    services: Services
    coordinator: Coordinator
    models: list[Floats] = field(default_factory=list)

    async def play(self, job: bytes, elements: int, clip: float, members: int) -> tuple[Contract, list[Floats]]:
        """Run a job to its end; returns its contract and all its models, in order."""
        layout = Layout((TensorSpec("audited", (elements,), Dtype.FLOAT32),))
        with self.store.blobs.create() as writer:
            writer.write(bytes(layout.size_bytes))
            blob = writer.commit().name
        names = [f"p{number:012}" for number in range(members)]
        sessions = [await self._joined(name) for name in names]
        submitted = await self.coordinator.submit(
            job_toml=job, file_name="job.toml", layout=layout, initial_blob=blob, operator="audit"
        )
        run = submitted.run
        state = await self.store.reader.run(noise_states.find, run)
        active = self.coordinator.active(run)
        if state is None or active is None:
            raise ValueError(f"run {run}, which was just submitted, is not private, or not active")
        contract = PrivateRun.from_text(state.body).contract
        update = known_update(elements, clip)
        async with asyncio.TaskGroup() as group:
            taking_part = [
                group.create_task(self._take_part(run, name, session, update))
                for name, session in zip(names, sessions, strict=True)
            ]
            while not active.driver.state.status.ended:
                await active.driver.changed.wait()
            for task in taking_part:
                task.cancel()
        self.models.append(await self._model(run, elements))
        return contract, self.models

    async def _joined(self, name: str) -> Session:
        record = participants.Participant(name, "audit", ParticipantKind.EDGE, enrolled_at=time.time())
        await self.store.writer.run(participants.add, record)
        introduction = Introduction(examples=1, encodings=frozenset(Encoding), can_evaluate=False, resuming=frozenset())
        membership = await self.coordinator.introduced(name, introduction)
        return self.services.sessions.connect(name, introduction, lambda: None, membership)

    async def _take_part(self, run: str, name: str, session: Session, update: Floats) -> None:
        while (instruction := await session.outbox.get()) is not None:
            message = participation_pb2.CheckInResponse.FromString(serialised(instruction))
            if message.HasField("participate"):
                self.models.append(await self._model(run, update.size))
                await self._report(name, message.participate.key, update)

    async def _report(self, name: str, key: participation_pb2.RoundKey, update: Floats) -> None:
        upload = UploadRef(key.run, key.round, key.attempt, name, _UPLOAD)
        header = header_of(ElementRange.run(0, update.size), Encoding.FLOAT32, update.tobytes())
        segment = self.services.spool.open_segment(upload)
        squares = float(np.sum(np.square(update, dtype=np.float64)))
        segment.append(header, memoryview(update.tobytes()), float(np.abs(update).max()), squares)
        segment.close()
        commit_upload(self.services.spool, upload, update.size, update_digest([header]), 0)
        request = transfer_pb2.ReportRequest(round=key, upload_id=_UPLOAD, digest=update_digest([header]), weight=1)
        await self.coordinator.commit(Commit(name, request, _NODE, payload_bytes=update.nbytes))

    async def _model(self, run: str, elements: int) -> Floats:
        row = await self.store.reader.run(runs.get, run)
        with self.store.blobs.open(row.current_model) as opened:
            return np.frombuffer(bytes(opened.read(0, 4 * elements)), np.float32)


@contextlib.asynccontextmanager
async def _daemon(folder: Path, keep_models: int) -> AsyncIterator[_Daemon]:
    store = Store.open(folder)
    with ThreadPoolExecutor(2) as executor, contextlib.closing(store):
        spool, nodes = Spool(folder / "spool", None), NodePool()
        nodes.add(LocalNode(IngestNode(_NODE, spool), executor))
        services = Services(
            writer=store.writer,
            reader=store.reader,
            blobs=store.blobs,
            spool=spool,
            sessions=Sessions(),
            nodes=nodes,
            executor=executor,
            evaluators={},
            clock=time.time,
            silence_s=WAIT_S,
            keep_models=keep_models,
            room=Room(folder, 0),
        )
        authority = Authority.open(folder / "ca", now=time.time())
        book = CertificateBook(authority, store.writer, store.reader, time.time)
        coordinator = Coordinator(services, book, StorageSettings(), insecure=False)
        await coordinator.start()
        try:
            yield _Daemon(store, services, coordinator)
        finally:
            await coordinator.stop()
            if left := asyncio.all_tasks() - {asyncio.current_task()}:  # tasks that clean up on the executor
                await asyncio.wait(left, timeout=WAIT_S)
