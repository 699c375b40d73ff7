"""Errors of the stores, a branch of ``atoll.server.errors``.

::

    ServerError
    ├── StorageError
    │   ├── StoreUnavailableError     database or disk cannot be used: full, read-only, gone, locked
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

from atoll.server.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    StorageError,
    UnavailableError,
)

_RETRY_AFTER_S = 1.0


class StoreUnavailableError(StorageError):
    """Database or disk cannot be used: full, read-only, gone, locked."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("store.unavailable", message, remedy, _RETRY_AFTER_S)


class CommitError(StorageError):
    """A commit failed, so nothing of it was acknowledged.

    Whether the database kept it is unknown until it is read again: every write here may be repeated.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("store.commit", message, remedy, _RETRY_AFTER_S)


class SchemaError(StorageError):
    """The database is not one that this version can use."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("store.schema", message, remedy)


class StoreDamagedError(CorruptDataError):
    """The database is damaged."""

    def __init__(self, message: str) -> None:
        super().__init__("store.damaged", message, "stop the server and restore the data directory from a back-up")


class BlobDamagedError(CorruptDataError):
    """A blob is truncated or changed."""

    def __init__(self, message: str) -> None:
        super().__init__("blob.damaged", message, "restore the file from a back-up or a replica; check the disk")


class StoreBusyError(UnavailableError):
    """Too much work is waiting for the database."""

    def __init__(self, message: str) -> None:
        super().__init__("store.busy", message, "try again a little later", _RETRY_AFTER_S)


class StoreClosedError(UnavailableError):
    """The store has been closed: the server is stopping."""

    def __init__(self) -> None:
        super().__init__("store.closed", "the server is stopping", "try again when it is back", _RETRY_AFTER_S)


class RecordConflictError(ConflictError):
    """Something else is recorded under the same key."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__("store.conflict", message, remedy)


class ReportConflictError(RecordConflictError):
    """Another update is recorded for this participant and round."""


class RecordMissingError(NotFoundError):
    """There is no such row."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what}.missing", f"there is no {what} {name[:80]!r}")


class BlobMissingError(NotFoundError):
    """There is no such blob."""

    def __init__(self, name: str) -> None:
        super().__init__("blob.missing", f"there is no blob {name[:80]!r}")
