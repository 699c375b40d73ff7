"""The services that all runs of a server share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from atoll.server.config.limits import DEFAULT_LIMITS, Limits
from atoll.server.disk.space import Room
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.runs.evaluators import Evaluator
from atoll.server.runs.leases import Leases
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import BlobStore, Reader, Writer, models
from atoll.server.telemetry.observer import NO_OBSERVER, Observer
from atoll.server.threads import in_thread, to_end

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    """Stores, sessions, ingest nodes, threads and the clock.

    Attributes:
        writer: the database's writer.
        reader: the database's readers.
        blobs: models.
        spool: uploads.
        sessions: connected participants.
        nodes: ingest nodes, which fold.
        executor: threads for disk and arithmetic.
        evaluators: the operator's plug-ins, by name.
        clock: epoch seconds, UTC.
        silence_s: seconds that a member may be disconnected before it counts as gone, if it is no silo.
        keep_models: number of released models kept per running run, in addition to the first.
        room: checks the disk's free space.
        leases: protect blobs that no row refers to yet.
        observer: metrics, log and traces.
        share_models: whether any participant may read any blob whose name it knows.
        limits: limits on what participants use.
        silo_silence_s: seconds that a silo may be disconnected.
        silos: participants of kind silo that have checked in.
        learns: whether participants' histories are kept, for samplers and report windows that use them.
        members_stay: whether members are still connected when a run resumes, as in a simulation; if not, they get time
            to return.
    """

    writer: Writer
    reader: Reader
    blobs: BlobStore
    spool: Spool
    sessions: Sessions
    nodes: NodePool
    executor: Executor
    evaluators: Mapping[str, Evaluator]
    clock: Callable[[], float]
    silence_s: float
    keep_models: int
    room: Room
    leases: Leases = field(default_factory=Leases)
    observer: Observer = NO_OBSERVER
    share_models: bool = False
    limits: Limits = DEFAULT_LIMITS
    silo_silence_s: float = 60.0
    silos: set[str] = field(default_factory=set)
    learns: bool = True
    members_stay: bool = False

    def patience_s(self, participant: str) -> float:
        """Seconds that a member may be disconnected before it counts as gone."""
        return max(self.silence_s, self.silo_silence_s) if participant in self.silos else self.silence_s

    async def sweep_blobs(self) -> None:
        """Remove the blobs that were set aside, except those that a row now refers to.

        The database is asked again before a bucket is changed. If this server was frozen meanwhile and lost its turn,
        the query fails, so that it does not delete a model that its successor has made again.
        """
        pending = self.blobs.pending()
        if pending:
            unneeded = await self.writer.run(partial(models.unnamed, names=pending))
            self.blobs.keep(pending - unneeded)
        else:
            unneeded = pending
        await self.call(self.blobs.sweep, unneeded)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread. A cancelled caller waits for its end, since they share resources."""
        return await to_end(in_thread(self.executor, function, *args, **kwargs))
