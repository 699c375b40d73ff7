"""Ownership of a place in a bucket: an object that the first server writes there and that no other replaces.

Two federations on one prefix would delete each other's models as unused. So a federation claims a prefix by creating
this object, which succeeds for only one of them, and every start checks it. A federation that has moved its objects
elsewhere notes that in it, for those of its servers that were not part of the move.
"""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

from atoll.server.buckets.errors import ForeignBucketError, ObjectMissingError

if TYPE_CHECKING:
    from atoll.server.buckets.bucket import Bucket

MARKER = "atoll-owner.json"


def claim(bucket: Bucket, owner: str) -> None:
    """Claim a place for the federation with this id.

    Raises:
        ForeignBucketError: if another federation uses it.
        StorageError: if the service refuses or does not answer.
    """
    if bucket.create(MARKER, _marker(owner)):
        return
    if _require_same(bucket, owner):
        bucket.put(MARKER, _marker(owner))


def is_claimed(bucket: Bucket) -> bool:
    """Return whether any federation has claimed a place.

    Raises:
        StorageError: if the service refuses or does not answer.
    """
    return bucket.facts(MARKER) is not None


def leave(bucket: Bucket, owner: str) -> None:
    """Note that the federation's objects have moved: ``require_owner`` refuses the place until it is claimed again.

    Raises:
        StorageError: if the service refuses or does not answer.
    """
    bucket.put(MARKER, _marker(owner, left=True))


def require_owner(bucket: Bucket, owner: str) -> None:
    """Check that a place belongs to this federation.

    Raises:
        ForeignBucketError: if another federation uses it; if none does, as in another bucket of the same name; or if
            the federation has moved its objects elsewhere.
        StorageError: if the service refuses or does not answer.
    """
    if _require_same(bucket, owner):
        raise ForeignBucketError(
            "the models were moved out of this place with `atoll server migrate`",
            "create this server's data directory again with `atoll server standby`, from that of the server that has "
            "them now",
            where=bucket.place,
        )


def _marker(owner: str, *, left: bool = False) -> bytes:
    content = {"owner": owner, "claimed_at": int(time.time()), "host": socket.gethostname()}
    return json.dumps(content | ({"left": True} if left else {})).encode()


def _require_same(bucket: Bucket, owner: str) -> bool:
    """Refuse another federation's place; returns whether this federation has left it."""
    try:
        found = json.loads(bucket.read(MARKER))
        there, host, left = str(found["owner"]), str(found["host"]), found.get("left") is True
    except ObjectMissingError:
        raise ForeignBucketError(
            f"the place in the bucket has no {MARKER}, though this server has used it",
            "check [storage] blobs_endpoint and the bucket; if it was emptied, restore the server from a backup",
            where=bucket.place,
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignBucketError(
            f"{MARKER} in the bucket cannot be read: {error}", "name an empty prefix", where=bucket.place
        ) from error
    if there != owner:
        raise ForeignBucketError(
            f"another federation keeps its models at this place: {there[:40]!r}, first used from {host[:80]!r}; this "
            f"one is {owner!r}",
            f"name another bucket or prefix; if that federation no longer exists, delete all objects there, {MARKER} "
            "last",
            where=bucket.place,
        )
    return left
