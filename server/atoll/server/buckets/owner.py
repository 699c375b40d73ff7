"""Whose the objects of a place in a bucket are: an object that the first server writes there, and no other replaces.

Two federations on one prefix would delete each other's models as unused. So a federation begins to use a prefix by
creating this object, which the service grants to one of them, and every start compares it.
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
    """Begin to use a place, as the federation with this id.

    Raises:
        ForeignBucketError: if another federation uses it.
        StorageError: if the service refuses or does not answer.
    """
    content = {"owner": owner, "claimed_at": int(time.time()), "host": socket.gethostname()}
    if not bucket.create(MARKER, json.dumps(content).encode()):
        require_owner(bucket, owner)


def require_owner(bucket: Bucket, owner: str) -> None:
    """Refuse a place that is not this federation's.

    Raises:
        ForeignBucketError: if another federation uses it, or none does: it may be another bucket of the same name.
        StorageError: if the service refuses or does not answer.
    """
    try:
        found = json.loads(bucket.read(MARKER))
        there, host = str(found["owner"]), str(found["host"])
    except ObjectMissingError:
        raise ForeignBucketError(
            f"the place in the bucket has no {MARKER}, though this server has used it",
            "check [storage] blobs_endpoint and the bucket; if it was emptied, restore the server from a back-up",
            where=bucket.place,
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignBucketError(
            f"{MARKER} in the bucket cannot be read: {error}", "name an empty prefix", where=bucket.place
        ) from error
    if there != owner:
        raise ForeignBucketError(
            f"another federation keeps its models at this place: {there[:40]!r}, first used from {host[:80]!r}; this "
            f"one is {owner!r}",
            f"name another bucket or prefix; if that federation is gone for good, delete all objects there, {MARKER} "
            "last",
            where=bucket.place,
        )
