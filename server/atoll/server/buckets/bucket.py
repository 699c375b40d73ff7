"""Operations on a bucket: objects are put whole, read in pieces, listed and deleted.

A put is atomic: no reader ever sees a part of an object. S3 compares each request's body with its signed SHA-256, so
bytes that were altered in transit are refused. Readers compare the bytes that they read with digests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from atoll.server.buckets.errors import BucketRefusedError, BucketUnavailableError, ObjectMissingError
from atoll.server.buckets.place import BucketPlace
from atoll.server.disk.space import fsync_path, storage_error

if TYPE_CHECKING:
    from obstore import PutResult
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

PART_BYTES = 8 << 20
"""Larger objects are written in parts of this many bytes, and read in ranges of it."""
_MOST_PARTS = 9_000  # S3 accepts 10,000
_PARALLEL = 4
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>(?:.*?<Message>([^<]{1,200}))?", re.DOTALL)
_ADDRESS = re.compile(r"(https?://[^/\s?]+)[^\s]*")
_RANGE = "ange"
"""Part of the error about an empty object, which has no byte range: InvalidRange, Requested range was invalid."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_ALLOW = "check the credentials in the environment, and that they may list, read, write and delete under this prefix"
_CREDENTIALS = "give credentials in the environment: $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or their like"
_REGION = "set [storage] blobs_region (or $AWS_REGION) to the bucket's region, and check blobs_endpoint"


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """Key and size of an object, and the epoch second of its last write by the service's clock."""

    key: str
    size_bytes: int
    made_at: float


class Bucket:
    """Objects under one prefix. Thread-safe. Calls block, at most for the times in ``opening`` for each request.

    Every method raises BucketUnavailableError if the service does not answer and BucketRefusedError if it refuses.

    Args:
        store: obstore's store.
        place: its name, for messages.
        root: the folder of a ``file`` store, whose files are synced here; None for other stores.
    """

    def __init__(self, store: ObjectStore, place: BucketPlace, root: Path | None = None) -> None:
        self._store = store
        self.place = place
        self._root = root

    def put_file(self, key: str, path: Path, size_bytes: int) -> None:
        """Store a file's bytes, in parts if it is large; replaces an existing object."""
        part = max(PART_BYTES, size_bytes // _MOST_PARTS + 1)
        with self._translated(key):
            obstore.put(self._store, key, path, chunk_size=part, max_concurrency=_PARALLEL)
        self._sync(key)

    def put(self, key: str, content: bytes | Iterable[Buffer]) -> str:
        """Store bytes, or the pieces of a stream; replaces an existing object.

        Returns:
            The object's version in a bucket with versioning; empty without versioning.
        """
        with self._translated(key):
            done: PutResult = obstore.put(self._store, key, content, chunk_size=PART_BYTES, max_concurrency=_PARALLEL)
        self._sync(key)
        version = done["version"]
        return "" if version in {None, "null"} else str(version)

    def create(self, key: str, content: bytes) -> bool:
        """Store an object unless the key exists; returns whether it was stored."""
        with self._translated(key):
            try:
                obstore.put(self._store, key, content, mode="create")
            except AlreadyExistsError:
                return False
        self._sync(key)
        return True

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield the bytes of an object, in pieces of at most ``PART_BYTES``.

        Raises:
            ObjectMissingError: if there is no such object.
        """
        try:
            with self._translated(key):
                first = obstore.get(self._store, key, options={"range": (0, PART_BYTES)})
                size, piece = first.meta["size"], bytes(first.bytes())
        except (BucketRefusedError, BucketUnavailableError) as error:
            if _RANGE in error.detail.message and self._is_empty(key):
                return
            raise
        yield piece
        for start in range(PART_BYTES, size, PART_BYTES):
            with self._translated(key):
                piece = bytes(obstore.get_range(self._store, key, start=start, end=min(start + PART_BYTES, size)))
            yield piece

    def read(self, key: str) -> bytes:
        """Read a small object.

        Raises:
            ObjectMissingError: if there is no such object.
        """
        with self._translated(key):
            return bytes(obstore.get(self._store, key).bytes())

    def facts(self, key: str) -> ObjectFacts | None:
        """Size and time of an object; None if it does not exist."""
        try:
            with self._translated(key):
                found = obstore.head(self._store, key)
        except ObjectMissingError:
            return None
        return _facts(found["path"], found["size"], found["last_modified"])

    def listed(self, folder: str) -> Iterator[ObjectFacts]:
        """The objects whose keys begin with ``folder`` and a slash, in no particular order."""
        with self._translated(folder):
            for batch in obstore.list(self._store, prefix=folder):
                for found in batch:
                    yield _facts(found["path"], found["size"], found["last_modified"])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; a missing object is no error."""
        if not keys:
            return
        try:
            with self._translated(keys[0]):
                obstore.delete(self._store, list(keys))
        except ObjectMissingError:  # stores without a bulk request stop at the first missing object
            for key in keys:
                with suppress(ObjectMissingError), self._translated(key):
                    obstore.delete(self._store, key)

    def _is_empty(self, key: str) -> bool:
        found = self.facts(key)
        return found is not None and found.size_bytes == 0

    def _sync(self, key: str) -> None:
        if self._root is None:
            return
        try:
            path = self._root / key
            for part in (path, *path.parents):
                fsync_path(part)
                if part == self._root:
                    return
        except OSError as error:
            raise storage_error("bucket.disk", "an object cannot be made durable", error) from error

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if any(mark in str(error) for mark in _NO_BUCKET):
                raise self._refused("there is no such bucket", "create it, or correct [storage] blobs") from error
            raise ObjectMissingError(key) from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise self._refused(f"the object store refuses: {_reason(error)}", _ALLOW) from error
        except (BaseError, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BucketRefusedError | BucketUnavailableError:
        """The error for an obstore error without a class of its own, whose text may contain addresses and tokens."""
        text = str(error)
        if "redirect" in text or "AuthorizationHeaderMalformed" in text or "PermanentRedirect" in text:
            return self._refused(f"the bucket is in another region: {_reason(error)}", _REGION)
        if "169.254." in text or "metadata.google" in text or "CredentialProvider" in text:
            return self._refused("there are no credentials for the object store", _CREDENTIALS)
        if "<Code>" in text and "retries" not in text:
            return self._refused(f"the object store refuses: {_reason(error)}", _ALLOW)
        return BucketUnavailableError(f"the object store does not answer: {_reason(error)}", where=self.place)

    def _refused(self, message: str, remedy: str) -> BucketRefusedError:
        return BucketRefusedError(message, remedy, where=self.place)


def _facts(key: str, size: int, at: datetime) -> ObjectFacts:
    return ObjectFacts(key, size, at.timestamp())


def _reason(error: Exception) -> str:
    """The service's message, in one line and without objects' addresses, whose query may contain a token."""
    text = str(error).partition("\n\nDebug source")[0]
    found = _CODE.search(text)
    if found is not None:
        return ": ".join(part for part in found.groups() if part)
    said = " ".join(text.split()).rpartition(" - ")[2]  # the text before it has request, times and number of retries
    return _ADDRESS.sub(r"\1", said)[:300]
