"""The checks of ``atoll doctor`` for models in a bucket; models in the data directory are checked with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator.errors import OperatorError
from atoll.server.cli.checks import CLOCK_FAIL_S, Finding, Status
from atoll.server.cli.errors import local_errors

if TYPE_CHECKING:
    from atoll.server.buckets import BucketPlace
    from atoll.server.buckets.bucket import Bucket

_CHECK = "bucket"
_PROBE = b"written and deleted by atoll doctor"
_EXPIRE = (
    "add a lifecycle rule that deletes old versions and unfinished multipart uploads under the prefix after a day; "
    "otherwise deleted models and uploads stay, and cost"
)


def bucket(data: Path, wanted: BucketPlace | None = None) -> Iterator[Finding]:
    """Check that the bucket is this federation's, and that objects can be put, read, listed and deleted.

    Args:
        data: the data directory.
        wanted: the bucket in the settings; None for the one that the directory has noted, if any.
    """
    from atoll.server.buckets import open_bucket  # noqa: PLC0415 - imports SQLAlchemy: half a second
    from atoll.server.stores import blob_place  # noqa: PLC0415 - as above

    try:
        with local_errors():
            place = blob_place.choose(data, wanted) if data.is_dir() else wanted
            if place is None:
                return
            if blob_place.find(data) is None:
                yield from _first_start(open_bucket(place))
            else:
                yield from _own(data, place)
    except OperatorError as error:
        yield Finding(_CHECK, Status.FAIL, error.message, error.remedy)


def _own(data: Path, place: BucketPlace) -> Iterator[Finding]:
    from atoll.server.stores.blob_place import open_store  # noqa: PLC0415 - as above
    from atoll.server.stores.bucket_blobs import BucketBlobStore  # noqa: PLC0415 - as above

    store = open_store(data, place)
    if isinstance(store, BucketBlobStore):
        store.require_owner()
        yield from _works(store.bucket, f"{len(store.stored())} models and states")


def _first_start(bucket: Bucket) -> Iterator[Finding]:
    from atoll.server.buckets.owner import is_claimed  # noqa: PLC0415 - as above

    if is_claimed(bucket):
        words = f"{bucket.place} belongs to a federation already, and this data directory is not part of it"
        remedy = "choose another prefix; or make the directory with `atoll server standby`, or name the right --data"
        yield Finding(_CHECK, Status.FAIL, words, remedy)
    else:
        yield from _works(bucket, "which the first start claims")


def _works(bucket: Bucket, fine: str) -> Iterator[Finding]:
    """Write, read and delete an object; ``fine`` says what else is known of the place."""
    key, place = f"doctor-{secrets.token_hex(8)}", bucket.place
    version = bucket.put(key, _PROBE)
    try:
        found, facts = bucket.read(key), bucket.facts(key)
    finally:
        bucket.delete([key])
    if found != _PROBE:
        words = f"{place} returns bytes other than those written"
        yield Finding(_CHECK, Status.FAIL, words, "check for a proxy, or a fault of the service")
    elif facts is not None and abs(facts.made_at - time.time()) > CLOCK_FAIL_S:
        words = f"the clock of {place} is {facts.made_at - time.time():+.0f} s from this machine's"
        yield Finding(
            _CHECK, Status.WARN, words, "set this machine's clock (NTP): unused models are found by their age"
        )
    elif version:
        yield Finding(_CHECK, Status.WARN, f"{place} keeps old versions of objects", _EXPIRE)
    else:
        yield Finding(_CHECK, Status.OK, f"{place}, {fine}; objects are written, read and deleted")
