"""A simulation's server: coordinator, stores and ledger, in one process and without a port.

The database, the models and the ledger are in a folder: the caller's, or one that is removed with the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, insert

from atoll.server.access.certificates import CertificateBook
from atoll.server.aggregation import PartialSum
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.identity import Authority, ParticipantKind
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_pool import NodePool
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.evaluators import Evaluator
from atoll.server.runs.services import Services
from atoll.server.stores import Participant, Store
from atoll.server.stores.row_conversion import to_row
from atoll.server.stores.schema import participants
from atoll.server.stores.store import SPOOL_FOLDER
from atoll.server.telemetry.observer import NO_OBSERVER
from atoll.simulation.inline import InlineExecutor, InlineReader, InlineWriter
from atoll.simulation.resuming.boundaries import Boundaries
from atoll.simulation.resuming.results_folder import model_path
from atoll.simulation.resuming.round_writer import RoundReader, RoundWriter
from atoll.simulation.sessions import Deliver, VirtualSessions
from atoll.simulation.spool import Forget, VirtualSpool

ORGANISATION = "simulation"
_STORAGE = StorageSettings(reserve_mib=0, keep_events=0, sweep_s=7 * 86_400.0)
_ROWS = 10_000
SILENCE_S = 60.0


class SummedOnArrival(NodePool):
    """Nodes whose sums already contain each update, or fetch it in ``partial``.

    Attributes:
        moved: by run, round, attempt and participant, the new node of each update that was recomputed at another node.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[tuple[str, int, int, str], str] = {}

    def due(self, key: SumKey, node: str, item: FoldItem) -> Sequence[FoldItem]:
        """See ``NodePool``."""
        del key, node, item
        return ()

    @contextlib.asynccontextmanager
    async def partials(
        self, key: SumKey, items: Sequence[tuple[str, FoldItem]], wait_until: float = 0.0
    ) -> AsyncIterator[list[PartialSum]]:
        """See ``NodePool``."""
        at = [(one.run, one.round, one.attempt, one.participant) for _, one in items]
        there = [(self.moved.get(of, node), one) for of, (node, one) in zip(at, items, strict=True)]
        async with super().partials(key, there, wait_until) as parts:
            yield parts


@dataclass(frozen=True)
class SimulatedServer:
    """The parts of a server used by a simulation."""

    folder: Path
    store: Store
    services: Services
    nodes: SummedOnArrival
    coordinator: Coordinator
    sessions: VirtualSessions
    spool: VirtualSpool

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        clock: Callable[[], float],
        deliver: Deliver,
        forget: Forget,
        evaluators: Mapping[str, Evaluator],
        learns: bool = True,
        boundaries: Boundaries | None = None,
        silence_s: float = SILENCE_S,
    ) -> SimulatedServer:
        """Open the state in a folder; call ``coordinator.start`` next.

        Args:
            folder: with database, models and ledger, or empty.
            clock: epoch seconds, of the virtual time.
            deliver: called with each instruction to a participant.
            forget: makes the runners forget updates.
            evaluators: evaluators of released models, by name.
            learns: whether histories of participants are kept, for jobs that use them.
            boundaries: the instants of commits; None: every write is a commit.
            silence_s: virtual seconds that a member may be disconnected before it counts as gone.
        """
        store = _store(folder, by_round=boundaries is not None)
        sessions = VirtualSessions(clock, deliver)
        spool, nodes = VirtualSpool(folder / SPOOL_FOLDER, forget), SummedOnArrival()
        services = Services(
            writer=store.writer,
            reader=store.reader,
            blobs=store.blobs,
            spool=spool,
            sessions=sessions,
            nodes=nodes,
            executor=InlineExecutor(),
            evaluators=evaluators,
            learns=learns,
            clock=clock,
            silence_s=silence_s,
            keep_models=1,
            room=_STORAGE.room(folder),
            observer=NO_OBSERVER if boundaries is None else boundaries,
            members_stay=True,
        )
        if boundaries is not None and isinstance(store.writer, RoundWriter):
            boundaries.services, boundaries.writer = services, store.writer
        authority = Authority.open(folder / "ca", now=clock())
        book = CertificateBook(authority, store.writer, store.reader, clock)
        coordinator = Coordinator(services, book, _STORAGE, insecure=True)
        return cls(folder, store, services, nodes, coordinator, sessions, spool)

    async def enrol(self, names: Iterable[str]) -> None:
        """Store the participants' records."""
        now = self.services.clock()
        rows = [to_row(Participant(name, ORGANISATION, ParticipantKind.EDGE, enrolled_at=now)) for name in names]

        def work(connection: Connection) -> None:
            for start in range(0, len(rows), _ROWS):
                connection.execute(insert(participants), rows[start : start + _ROWS])

        await self.services.writer.run(work)

    def model_path(self, blob: str) -> Path:
        """The file that begins with a model's bytes."""
        return model_path(self.folder, blob)

    async def close(self) -> None:
        """Stop the runs and close the stores."""
        await self.coordinator.stop()
        self.spool.close()
        self.store.close()


def _store(folder: Path, *, by_round: bool) -> Store:
    if not by_round:
        return Store.open(folder, writer_type=InlineWriter, reader_type=InlineReader)
    store = Store.open(folder, writer_type=RoundWriter, reader_type=RoundReader)
    if isinstance(store.reader, RoundReader) and isinstance(store.writer, RoundWriter):
        store.reader.writer = store.writer
    return store
