"""The durable state of a server: the database, the blobs, and the functions that read and write them.

``Store.open`` returns a ``writer``, a ``reader`` and ``blobs``. Each table has a module of functions that take a
connection and take or return frozen records, so that several calls can share one transaction::

    await store.writer.run(runs.add, run)
    events = await store.reader.run(event_log.read, run_id, start=7)
"""

from atoll.server.stores import (
    audit,
    certificates,
    charges,
    deletion,
    event_log,
    history,
    models,
    noise_states,
    operators,
    participants,
    populations,
    project_roles,
    projects,
    release,
    reports,
    rounds,
    runs,
    snapshots,
    tokens,
)
from atoll.server.stores.audit import AuditChain, AuditEntry, AuditFilter
from atoll.server.stores.blobs import Blob, BlobFacts, BlobStore, BlobWriter
from atoll.server.stores.certificates import Certificate
from atoll.server.stores.charges import Charge
from atoll.server.stores.directory_blobs import DirectoryBlobStore
from atoll.server.stores.errors import (
    BlobDamagedError,
    BlobMissingError,
    CommitError,
    RecordConflictError,
    RecordMissingError,
    ReportConflictError,
    SchemaError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreFullError,
    StoreUnavailableError,
)
from atoll.server.stores.event_log import LoggedEvent
from atoll.server.stores.history import ParticipantHistory
from atoll.server.stores.models import Model
from atoll.server.stores.noise_states import NoiseRecord
from atoll.server.stores.operators import Grant
from atoll.server.stores.participants import Participant
from atoll.server.stores.populations import Population
from atoll.server.stores.project_roles import ProjectGrant
from atoll.server.stores.projects import Project
from atoll.server.stores.reader import Reader
from atoll.server.stores.release import Release
from atoll.server.stores.reports import Recorded, Report
from atoll.server.stores.rounds import Member, Round
from atoll.server.stores.runs import Run
from atoll.server.stores.snapshots import Snapshot
from atoll.server.stores.store import Store
from atoll.server.stores.writer import Writer

__all__ = [
    "AuditChain",
    "AuditEntry",
    "AuditFilter",
    "Blob",
    "BlobDamagedError",
    "BlobFacts",
    "BlobMissingError",
    "BlobStore",
    "BlobWriter",
    "Certificate",
    "Charge",
    "CommitError",
    "DirectoryBlobStore",
    "Grant",
    "LoggedEvent",
    "Member",
    "Model",
    "NoiseRecord",
    "Participant",
    "ParticipantHistory",
    "Population",
    "Project",
    "ProjectGrant",
    "Reader",
    "RecordConflictError",
    "RecordMissingError",
    "Recorded",
    "Release",
    "Report",
    "ReportConflictError",
    "Round",
    "Run",
    "SchemaError",
    "Snapshot",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreFullError",
    "StoreUnavailableError",
    "Writer",
    "audit",
    "certificates",
    "charges",
    "deletion",
    "event_log",
    "history",
    "models",
    "noise_states",
    "operators",
    "participants",
    "populations",
    "project_roles",
    "projects",
    "release",
    "reports",
    "rounds",
    "runs",
    "snapshots",
    "tokens",
]
