"""Errors of the stores, a branch of ``atoll.server.errors``.

::

    ServerError
    ├── StorageError
    │   ├── StorageFullError
    │   │   └── StoreFullError        the disk of database or blobs is full
    │   ├── StoreUnavailableError     database or disk cannot be used: read-only, gone, locked
    │   ├── CommitError               a commit failed: nothing of it was acknowledged, repeat it
    │   └── SchemaError               the database is not one that this version can use
    ├── CorruptDataError
    │   ├── StoreDamagedError         the database is damaged
    │   └── BlobDamagedError          a blob is truncated or changed
    ├── UnavailableError
    │   ├── StoreBusyError            too much work is waiting
    │   └── StoreClosedError          the store has been closed
    ├── ConflictError
    │   └── RecordConflictError       something else is recorded under the same key
    │       └── ReportConflictError   another update is recorded for this participant and round
    └── NotFoundError
        ├── RecordMissingError        no such row
        └── BlobMissingError          no such blob
"""

from __future__ import annotations

from atoll.server.disk.space import FREE_SOME_SPACE
from atoll.server.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from atoll.wire.status import Recovery

_RETRY_AFTER_S = 1.0


class StoreUnavailableError(StorageError):
    """Database or disk cannot be used: read-only, missing or locked."""

    def __init__(self, message: str, remedy: str, *, where: object = "") -> None:
        super().__init__("store.unavailable", message, remedy, _RETRY_AFTER_S, where=where)


class StoreFullError(StorageFullError):
    """The disk of database or blobs is full; nothing was acknowledged."""

    def __init__(self, message: str, *, where: object = "") -> None:
        super().__init__("storage.full", message, FREE_SOME_SPACE, _RETRY_AFTER_S, where=where)


class CommitError(StorageError):
    """A commit failed, so nothing of it was acknowledged.

    Whether the database kept it is unknown until it is read again; every write of the stores may be repeated.
    """

    def __init__(self, message: str, remedy: str, *, where: object = "") -> None:
        super().__init__("store.commit", message, remedy, _RETRY_AFTER_S, where=where)


class SchemaError(StorageError):
    """This version cannot use the database's schema."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("store.schema", message, remedy)


class StoreDamagedError(CorruptDataError):
    """The database is damaged."""

    def __init__(self, message: str, *, where: object = "") -> None:
        remedy = "stop the server and restore the data directory from a backup"
        super().__init__("store.damaged", message, remedy, where=where)


class BlobDamagedError(CorruptDataError):
    """A blob is truncated or changed."""

    def __init__(self, message: str, *, where: object = "") -> None:
        remedy = "restore the file from a backup or a replica; check the disk"
        super().__init__("blob.damaged", message, remedy, where=where)


class StoreBusyError(UnavailableError):
    """The database's queue is full."""

    def __init__(self, message: str) -> None:
        super().__init__("store.busy", message, "try again a little later", _RETRY_AFTER_S)


class StoreClosedError(UnavailableError):
    """The store has been closed: the server is stopping."""

    def __init__(self) -> None:
        super().__init__("store.closed", "the server is stopping", "try again when it is back", _RETRY_AFTER_S)


class RecordConflictError(ConflictError):
    """A different record exists under the same key."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__("store.conflict", message, remedy)


class ReportConflictError(RecordConflictError):
    """A different update is recorded for this participant and round."""

    recovery = Recovery.NEXT_TASK


class RecordMissingError(NotFoundError):
    """There is no such run, participant, population or other record."""

    def __init__(self, what: str, name: str, remedy: str = "") -> None:
        super().__init__(f"{what}.missing", f"there is no {what} {name[:80]!r}", remedy)


class BlobMissingError(NotFoundError):
    """There is no such blob."""

    recovery = Recovery.NEXT_TASK

    def __init__(self, name: str) -> None:
        super().__init__("blob.missing", f"there is no blob {name[:80]!r}")
