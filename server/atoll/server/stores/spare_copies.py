"""Cached copies of a bucket's blobs, which can be removed when the disk runs short."""

from __future__ import annotations

from pathlib import Path

from atoll.server.errors import ServerError
from atoll.server.stores import blob_place
from atoll.server.stores.blob_cache import BlobCache
from atoll.server.stores.blob_place import BLOBS_FOLDER

_BLOBS = "[0-9a-f][0-9a-f]/*"


class SpareCopies:
    """A data directory's copies of blobs in a bucket: a ``disk.Spare``. Without a bucket there are none."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._cache: BlobCache | None = None

    def stored_bytes(self) -> int:
        """Total bytes of the copies.

        Raises:
            OSError: if the disk refuses.
        """
        return sum(_size_of(path) for path in (self._data / BLOBS_FOLDER).glob(_BLOBS)) if self._are_copies() else 0

    def clear(self) -> None:
        """Remove the copies. Raises what ``stored_bytes`` raises."""
        if not self._are_copies():
            return
        try:
            self._cache = self._cache or BlobCache(self._data / BLOBS_FOLDER, 0)
            self._cache.clear()
        except ServerError as error:
            raise OSError(str(error)) from error

    def _are_copies(self) -> bool:
        """Whether the directory has noted that its blobs are in a bucket; otherwise its files may be the only ones."""
        try:
            return blob_place.find(self._data) is not None
        except ServerError as error:
            raise OSError(str(error)) from error


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0
