"""Moves committed uploads between a spool and its bucket, while no server runs on either."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from atoll.server.errors import CorruptDataError, NotFoundError
from atoll.server.ingest.bucket_uploads import CommittedKey
from atoll.server.ingest.committed import COMMITTED, UPLOAD_ID_CHARS
from atoll.server.ingest.records import RECORD_BYTES, unpack_record
from atoll.server.ingest.small_update_files import WHOLE
from atoll.server.ingest.spool import Spool
from atoll.wire.chunks import update_digest

log = logging.getLogger(__name__)


def put_uploads(spool: Spool) -> int:
    """Put every committed upload of a spool's folder into its bucket; returns their number.

    A damaged upload is left out; its round will find it missing.

    Raises:
        StorageError: if bucket or disk refuses.
    """
    count = 0
    for key in held_here(spool):
        if spool.bucket is None:
            break
        try:
            with spool.committed(key.run, key.round, key.attempt, key.participant, key.digest) as found:
                whole = found.folder.name if len(found.folder.name) == UPLOAD_ID_CHARS else key.digest[:UPLOAD_ID_CHARS]
                spool.bucket.put(key, whole, found.records, found.payload)
        except (CorruptDataError, NotFoundError) as error:
            log.warning("an update is left out: %s", error.detail.code, extra={"run": key.run})
            continue
        count += 1
    return count


def fetch_uploads(spool: Spool) -> int:
    """Copy every upload in the bucket to the spool's folder; returns their number.

    Raises:
        StorageError: if bucket or disk refuses.
    """
    count = 0
    for key, _ in () if spool.bucket is None else spool.bucket.listed():
        count += not spool.flaw(key.run, key.round, key.attempt, key.participant, key.digest)
    return count


def held_here(spool: Spool) -> Iterator[CommittedKey]:
    """The committed uploads in a spool's folder, without damaged small ones.

    Raises:
        OSError: if the disk refuses.
    """
    for run in spool.runs_here():
        for folder in sorted((spool.root / run).glob("*.*")):
            number, _, attempt = folder.name.partition(".")
            for path in sorted(folder.glob(f"*/*{COMMITTED}")):
                yield CommittedKey(run, int(number), int(attempt), path.parent.name, path.stem)
            for path in sorted(folder.glob(f"*{WHOLE}")):
                try:
                    record = unpack_record(path.read_bytes()[:RECORD_BYTES], path, path.stem)
                except CorruptDataError as error:
                    log.warning("an update is left out: %s", error.detail.code, extra={"run": run})
                    continue
                digest = update_digest([record.header])
                yield CommittedKey(run, int(number), int(attempt), path.name.partition(".")[0], digest)
