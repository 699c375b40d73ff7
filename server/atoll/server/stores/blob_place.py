"""The place of a data directory's blobs: the directory itself, or a bucket that the directory has a note of.

Database rows refer to blobs, so the two belong together. A directory never changes the place of its blobs silently, and
every command that is given the directory finds them. The note also has the id by which the federation owns its place in
the bucket; a directory keeps that id permanently. Credentials are never stored in it.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from atoll.server.buckets import BucketPlace, open_bucket, parse_place
from atoll.server.buckets.owner import claim, require_owner
from atoll.server.errors import CorruptDataError, InvalidRequestError
from atoll.server.identity.files import PRIVATE_MODE, write_atomic
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.server.stores.directory_blobs import DirectoryBlobStore
from atoll.server.stores.errors import SchemaError, StoreUnavailableError

AnyBlobStore = DirectoryBlobStore | BucketBlobStore
BLOBS_FOLDER = "blobs"
PLACE_FILE = "blobs.json"
CACHE_BYTES = 16 << 30
"""Default limit of the cache in bytes."""


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """An operator's settings of blobs.

    Attributes:
        bucket: the bucket of the blobs; None for the noted place, which for a new directory is the directory.
        cache_bytes: limit on the directory's copies of a bucket's blobs.
    """

    bucket: BucketPlace | None = None
    cache_bytes: int = CACHE_BYTES


IN_DIRECTORY = BlobSettings()
"""The default settings: blobs are at the noted place."""


@dataclass(frozen=True, slots=True)
class Note:
    """A data directory's note about its blobs.

    Attributes:
        owner: the federation's id in buckets.
        place: the bucket of its blobs; None for the directory.
        claimed: whether the place was verified to be this federation's; before that the note is not binding.
    """

    owner: str
    place: BucketPlace | None
    claimed: bool


def find(directory: Path) -> BucketPlace | None:
    """Return the bucket with a directory's blobs; None if they are in the directory.

    Raises:
        CorruptDataError: if the directory's note cannot be read.
    """
    found = _read(directory)
    return found.place if found is not None and found.claimed else None


def choose(directory: Path, wanted: BucketPlace | None) -> BucketPlace | None:
    """Return the bucket that a server on this directory uses; None if it uses the directory.

    Endpoint and region may change, since the same bucket can be reached in several ways.

    Args:
        directory: the data directory.
        wanted: the bucket in the settings; None for the noted place.

    Raises:
        SchemaError: if the directory's blobs are elsewhere.
        CorruptDataError: if the directory's note cannot be read.
    """
    there = find(directory)
    if wanted is None or (there is not None and there.url == wanted.url):
        return wanted or there
    if there is None and next(DirectoryBlobStore(directory / BLOBS_FOLDER).names(), None) is None:
        return wanted
    place = there.url if there is not None else directory / BLOBS_FOLDER
    raise SchemaError(
        f"the models of {directory} are in {place}, and the settings name {wanted.url}",
        f"move them there with `atoll server migrate --blobs {wanted.url}`, or correct the setting",
    )


def open_store(directory: Path, place: BucketPlace | None, *, cache_bytes: int = CACHE_BYTES) -> AnyBlobStore:
    """Open the blobs of a directory, at the place that ``choose`` or ``find`` returned.

    Raises:
        ForeignBucketError: if the place in the bucket is another federation's.
        StorageError: if the bucket or the disk refuses.
    """
    if place is None:
        return DirectoryBlobStore(directory / BLOBS_FOLDER)
    known = _read(directory)
    bucket = open_bucket(place)
    if known is None:
        raise SchemaError(f"{directory} does not note {place.url}", "start the main server process first")
    return BucketBlobStore(directory / BLOBS_FOLDER, bucket, known.owner, cache_bytes)


def open_chosen(directory: Path, settings: BlobSettings = IN_DIRECTORY, *, primary: bool = False) -> AnyBlobStore:
    """Open the blobs of a directory as a server does.

    Args:
        directory: the data directory.
        settings: the place that they should be in.
        primary: whether to claim a new place for this federation; otherwise the directory must have it noted.

    Raises:
        SchemaError: if the directory's blobs are elsewhere, or the place has not been noted.
        StorageError: if the bucket or the disk refuses, or the bucket is another federation's.
        CorruptDataError: if the directory's note cannot be read.
    """
    place = choose(directory, settings.bucket)
    if primary:
        settle(directory, place)
    return open_store(directory, place, cache_bytes=settings.cache_bytes)


def settle(directory: Path, place: BucketPlace | None) -> None:
    """Claim a place for this federation and note it, durably; a place that is already noted is only checked.

    Raises:
        ForeignBucketError: if the place in the bucket is another federation's.
        StorageError: if the bucket or the disk refuses.
    """
    there = _read(directory)
    if place is None:
        if there is not None and there.place is not None:
            note(directory, Note(there.owner, None, claimed=True))
        return
    known = find(directory)
    if there is not None and known is not None and known.url == place.url:
        require_owner(open_bucket(place), there.owner)
        if known != place:
            note(directory, replace(there, place=place))
        return
    note(directory, claim_place(directory, place))


def claim_place(directory: Path, place: BucketPlace) -> Note:
    """Claim a place in a bucket for this federation; the directory uses it once the result is noted.

    Raises:
        ForeignBucketError: if it is another federation's.
        StorageError: if the bucket or the disk refuses.
    """
    there = _read(directory)
    claimed = Note(there.owner if there is not None else secrets.token_hex(16), place, claimed=True)
    note(directory, replace(claimed, claimed=False))  # so that a server killed below recognises its claim
    claim(open_bucket(place), claimed.owner)
    return claimed


def _read(directory: Path) -> Note | None:
    path = directory / PLACE_FILE
    try:
        found = json.loads(path.read_bytes())
        url = found["blobs"]
        place = parse_place(url, found["endpoint"], found["region"]) if url else None
        return Note(str(found["owner"]), place, found["claimed"] is True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidRequestError) as error:
        remedy = "copy it from the newest copy of the data directory; it names the bucket and the federation's id there"
        raise CorruptDataError("store.place", f"{path} cannot be read: {error}", remedy) from error


def note(directory: Path, fact: Note) -> None:
    """Write the note about a directory's blobs, durably.

    Raises:
        StoreUnavailableError: if the directory cannot be written.
    """
    place = fact.place or BucketPlace("")
    content = {"blobs": place.url, "endpoint": place.endpoint, "region": place.region, "owner": fact.owner}
    path = directory / PLACE_FILE
    try:
        write_atomic(path, json.dumps(content | {"claimed": fact.claimed}).encode(), mode=PRIVATE_MODE)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be written: {error.strerror}",
            "make the data directory writable for the server's account",
        ) from error
