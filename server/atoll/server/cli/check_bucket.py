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
    from atoll.server.stores.bucket_blobs import BucketBlobStore

_CHECK = "bucket"
_PROBE = b"written and deleted by atoll doctor"
_EXPIRE = (
    "add a lifecycle rule that deletes old versions and unfinished multipart uploads under the prefix after a day; "
    "otherwise deleted models and uploads stay, and cost"
)


def bucket(data: Path) -> Iterator[Finding]:
    """Check that the bucket is this federation's, and that objects can be put, read, listed and deleted."""
    from atoll.server.stores.blob_place import open_chosen  # noqa: PLC0415 - SQLAlchemy: half a second that others save
    from atoll.server.stores.bucket_blobs import BucketBlobStore  # noqa: PLC0415 - as above

    if not data.is_dir():
        return
    try:
        with local_errors():
            store = open_chosen(data)
            if isinstance(store, BucketBlobStore):
                yield from _works(store)
    except OperatorError as error:
        yield Finding(_CHECK, Status.FAIL, error.message, error.remedy)


def _works(store: BucketBlobStore) -> Iterator[Finding]:
    store.require_owner()
    key, place = f"doctor-{secrets.token_hex(8)}", store.bucket.place
    version = store.bucket.put(key, _PROBE)
    try:
        found, facts = store.bucket.read(key), store.bucket.facts(key)
    finally:
        store.bucket.delete([key])
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
        count = len(store.stored())
        yield Finding(_CHECK, Status.OK, f"{place}, {count} models and states; objects are written, read and deleted")
