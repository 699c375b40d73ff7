"""Backups of a running server's data directory and their restoration; moves of its database and models.

A backup is a folder::

    manifest.json      its contents, with sizes and digests
    atoll.sqlite3      the database as of one moment, as a SQLite file
    blobs/             the models and optimiser states that it names, hard-linked where the disk is the same, or
                       copied from the bucket that has them
    ca/, operator.json the certificate authority: its key is the federation's root of trust, so the folder is private

Uploads are not included: they are participants' data, and are not kept longer than their round needs. A round that was
open when the backup was made is tried again after a restoration.
"""

from atoll.server.backup.make import back_up
from atoll.server.backup.manifest import Manifest, RunLine, read_manifest
from atoll.server.backup.moving import Moved, move_database
from atoll.server.backup.moving_blobs import MovedBlobs, move_blobs
from atoll.server.backup.restore import Restored, last_restoration, restore
from atoll.server.backup.standby_folder import make_standby

__all__ = [
    "Manifest",
    "Moved",
    "MovedBlobs",
    "Restored",
    "RunLine",
    "back_up",
    "last_restoration",
    "make_standby",
    "move_blobs",
    "move_database",
    "read_manifest",
    "restore",
]
