"""Blobs in an object store, with a bounded cache on the local disk.

::

    commit   cache/incoming/… ──put──► bucket blobs/<first 2 hex>/<name> ──then──► cache/<first 2 hex>/<name>
    open     cache, else bucket ──► cache/incoming/… ──digests compared──► cache/<first 2 hex>/<name>

An object has the content of the file that ``directory_blobs`` describes. A blob exists once the bucket has it: it is
put there before it is committed, and therefore before a row can refer to it. Setting a blob aside only marks it in
memory; ``sweep`` deletes it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from atoll.server.buckets.errors import ObjectMissingError
from atoll.server.buckets.owner import leave, require_owner
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.stores.blob_cache import BlobCache
from atoll.server.stores.blobs import BlobFacts
from atoll.server.stores.directory_blobs import DirectoryBlobWriter, MappedBlob
from atoll.server.stores.errors import BlobDamagedError, BlobMissingError, StoreFullError
from atoll.server.stores.incoming_files import IncomingFile
from atoll.server.stores.pending_deletions import PendingDeletions
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, BlobManifest

if TYPE_CHECKING:
    from atoll.server.buckets.bucket import Bucket

log = logging.getLogger(__name__)

FOLDER = "blobs"
UPLOADS_FOLDER = "uploads"
"""Key prefix, in the same bucket, of the uploads of live rounds by run; see ``ingest.bucket_uploads``."""
_MOST_KNOWN = 4096
"""Maximum number of names that a process remembers as put into the bucket; for forgotten ones, the bucket is asked."""
_NAME_CHARS = 64
_ATTEMPTS = 5
"""Attempts to open a fetched blob, since another process may have removed it to make room for its own."""
_ENLARGE = "raise [storage] cache_mib above what the models in use take, and try again"


class BucketBlobStore:
    """Blobs in a bucket: a ``BlobStore``. Thread-safe; several processes may share cache and bucket.

    Every method also raises BucketUnavailableError if the service does not answer, and BucketRefusedError if it
    refuses.

    Args:
        root: directory of the cache.
        bucket: the bucket that holds the blobs.
        owner: the federation's id in the bucket.
        most_cached_bytes: limit of the cache.
    """

    def __init__(self, root: Path, bucket: Bucket, owner: str, most_cached_bytes: int) -> None:
        self.cache = BlobCache(root, most_cached_bytes)
        self.bucket = bucket
        self._owner = owner
        self._pending = PendingDeletions()
        self._known = _Known()
        self._fetching = _Turns()

    def create(self, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, expected_bytes: int = 0) -> DirectoryBlobWriter:
        """Begin a new blob: see ``BlobStore``."""
        return DirectoryBlobWriter(
            self.cache.files.incoming(expected_bytes), chunk_bytes, self._publish, self.cache.append
        )

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[MendedBlob]:
        """Open a blob for reading: see ``BlobStore``. It is fetched whole unless it is cached."""
        yield MendedBlob(self, name, self._opened(name))

    def manifest(self, name: str) -> BlobManifest:
        """The manifest of a blob: see ``BlobStore``."""
        return self._opened(name).manifest

    def exists(self, name: str) -> bool:
        """Whether the bucket has a blob of that name: see ``BlobStore``."""
        if name in self._pending:
            return False
        return name in self._known or self.facts(name) is not None

    def set_aside(self, name: str) -> bool:
        """Make a blob invisible here: see ``BlobStore``. The bucket is not asked."""
        path = self.cache.files.path_of(name)
        with self.cache.files.removing() as allowed:
            if allowed:
                self._pending.add(name)
                self._known.forget(name)
                if path.exists():
                    self.cache.files.drop(name)
            return allowed

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A context in which no process of this machine sets blobs aside or deletes them."""
        with self.cache.files.kept():
            yield

    def pending(self) -> frozenset[str]:
        """Blobs set aside whose objects exist: see ``BlobStore``."""
        return self._pending.names()

    def keep(self, names: Collection[str]) -> None:
        """Make pending blobs visible again: see ``BlobStore``."""
        self._pending.keep(names)

    def sweep(self, unneeded: frozenset[str] = frozenset()) -> int:
        """Delete the objects of these blobs, and unfinished local files: see ``BlobStore``.

        If the service refuses to delete an object, this is logged, and the next sweep tries again.
        """
        removed = self.cache.files.sweep()
        try:
            with self._pending.batch(unneeded) as names:
                self.bucket.delete([key_of(name) for name in sorted(names)])
                removed += len(names)
                for name in names:  # a worker may have fetched it meanwhile
                    if self.cache.files.path_of(name).exists():
                        self.cache.files.drop(name)
        except ServerError as error:
            log.warning("unused blobs stay in the bucket until the next sweep: %s", error.logged)
        return removed

    def close(self) -> None:
        """Remove files kept for overwriting: see ``BlobStore``."""
        self.cache.files.close()

    def facts(self, name: str) -> BlobFacts | None:
        """Size and time of a blob: see ``BlobStore``."""
        self.cache.files.path_of(name)
        found = None if name in self._pending else self.bucket.facts(key_of(name))
        return None if found is None else BlobFacts(found.size_bytes, found.made_at)

    def names(self) -> Iterator[str]:
        """The names of all blobs: see ``BlobStore``."""
        yield from self.stored()

    def stored(self) -> Mapping[str, BlobFacts]:
        """Sizes and times of all blobs, by the bucket's clock: see ``BlobStore``."""
        return {
            found.key.rpartition("/")[2]: BlobFacts(found.size_bytes, found.made_at)
            for found in self.bucket.listed(FOLDER)
            if _is_blob(found.key) and found.key.rpartition("/")[2] not in self._pending
        }

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a blob's object, which the caller compares with its name.

        Raises:
            BlobMissingError: if there is no blob of that name.
        """
        try:
            yield from self.bucket.pieces(key_of(name))
        except ObjectMissingError:
            raise BlobMissingError(name) from None

    def verify(self, name: str) -> None:
        """Compare every chunk of a blob in the bucket with its digest: see ``BlobStore``."""
        self._fetch(name)

    def problem(self) -> str:
        """The reason why the bucket cannot be used; empty if it answers and is this federation's: see ``BlobStore``."""
        try:
            self.require_owner()
        except ServerError as error:
            return f"{error.detail.code}: {error.detail.message}"
        return ""

    def require_owner(self) -> None:
        """Check that the place in the bucket belongs to this federation.

        Raises:
            ForeignBucketError: if it is another federation's.
        """
        require_owner(self.bucket, self._owner)

    def leave(self) -> None:
        """Note in the bucket that the federation's models have moved, so that its other servers refuse it."""
        leave(self.bucket, self._owner)

    def mended(self, name: str, error: BlobDamagedError) -> MappedBlob:
        """Fetch a blob whose cached file is damaged.

        Raises:
            BlobMissingError: if the bucket does not have it.
            BlobDamagedError: if it is also damaged there.
        """
        log.warning("a cached blob is damaged, and is fetched again: %s", error.logged)
        self.cache.files.drop(name)
        return self._opened(name)

    def _opened(self, name: str) -> MappedBlob:
        if name in self._pending:
            raise BlobMissingError(name)
        with self._fetching.of(name):
            for _ in range(_ATTEMPTS):
                found = self.cache.opened(name)
                if found is not None:
                    return found
                self._fetch(name)
        raise UnavailableError("blob.cache", "a model was removed from the cache while it was opened", _ENLARGE, 1.0)

    def _fetch(self, name: str) -> None:
        """Copy a blob into the cache."""
        self.cache.files.path_of(name)
        key = key_of(name)
        try:
            try:
                self.cache.add(name, self.bucket.pieces(key))
            except StoreFullError:
                self.cache.clear()
                self.cache.add(name, self.bucket.pieces(key))
        except ObjectMissingError:
            raise BlobMissingError(name) from None
        except BlobDamagedError as error:
            raise BlobDamagedError(error.detail.message, where=f"{self.bucket.place} {key}") from error

    def _publish(self, file: IncomingFile, name: str) -> None:
        """Put a finished file into the bucket, and make it visible here."""
        with self._pending.publishing(name):
            self.bucket.put_file(key_of(name), file.path, file.written)
            file.show(name)
            self._known.add(name)
        self.cache.added(file.written)


class MendedBlob:
    """A ``Blob`` over a cached file, which is fetched again if a chunk is damaged. Thread-safe."""

    def __init__(self, store: BucketBlobStore, name: str, cached: MappedBlob) -> None:
        self._store, self._name, self._cached = store, name, cached
        self.manifest = cached.manifest
        self.size_bytes = cached.size_bytes

    def chunk(self, index: int) -> memoryview:
        """The bytes of one chunk, checked: see ``Blob``."""
        try:
            return self._cached.chunk(index)
        except BlobDamagedError as error:
            self._cached = self._store.mended(self._name, error)
            return self._cached.chunk(index)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes [start, stop), checked: see ``Blob``."""
        try:
            return self._cached.read(start, stop)
        except BlobDamagedError as error:
            self._cached = self._store.mended(self._name, error)
            return self._cached.read(start, stop)


def key_of(name: str) -> str:
    """The key of a blob's object."""
    return f"{FOLDER}/{name[:2]}/{name}"


def _is_blob(key: str) -> bool:
    name = key.rpartition("/")[2]
    return len(name) == _NAME_CHARS and key == key_of(name)


class _Known:
    """Names of blobs that this process has put into the bucket and not since set aside."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        with self._lock:
            self._names[name] = None
            self._names.move_to_end(name)
            if len(self._names) > _MOST_KNOWN:
                self._names.popitem(last=False)

    def forget(self, name: str) -> None:
        with self._lock:
            self._names.pop(name, None)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._names


class _Turns:
    """One lock for each name in use, so that threads do not fetch the same blob concurrently."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: dict[str, tuple[Lock, int]] = {}

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        with self._lock:
            lock, users = self._locks.get(name, (Lock(), 0))
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._locks.pop(name)
                if users > 1:
                    self._locks[name] = (lock, users - 1)
