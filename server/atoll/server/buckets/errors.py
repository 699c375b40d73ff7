"""Errors of object stores, a branch of ``atoll.server.errors``.

::

    ServerError
    ├── StorageError
    │   ├── BucketUnavailableError    the service does not answer, or fails: it is tried again
    │   ├── BucketRefusedError        it refuses: credentials, permissions, region, no such bucket
    │   └── ForeignBucketError        another federation's objects are there, or none that belong to this one
    └── NotFoundError
        └── ObjectMissingError        no such object
"""

from __future__ import annotations

from atoll.server.errors import NotFoundError, StorageError

_RETRY_AFTER_S = 5.0


class BucketUnavailableError(StorageError):
    """The service of a bucket does not answer, or fails; nothing was acknowledged."""

    def __init__(self, message: str, *, where: object = "") -> None:
        remedy = "check that the service runs and that this machine reaches it; waiting work then continues"
        super().__init__("bucket.unavailable", message, remedy, _RETRY_AFTER_S, where=where)


class BucketRefusedError(StorageError):
    """The service refuses: credentials, permissions, region, or there is no such bucket."""

    def __init__(self, message: str, remedy: str, *, where: object = "") -> None:
        super().__init__("bucket.refused", message, remedy, _RETRY_AFTER_S, where=where)


class ForeignBucketError(StorageError):
    """The objects of a place in a bucket are not this federation's."""

    def __init__(self, message: str, remedy: str, *, where: object = "") -> None:
        super().__init__("bucket.foreign", message, remedy, where=where)


class ObjectMissingError(NotFoundError):
    """There is no such object."""

    def __init__(self, key: str) -> None:
        super().__init__("bucket.missing", f"there is no object {key[:160]!r}")
