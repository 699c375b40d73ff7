"""Retention and free disk space: ``[storage]`` of ``server.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atoll.server.buckets import BucketPlace, parse_place
from atoll.server.disk.recycling import FreeFolder
from atoll.server.disk.space import Room
from atoll.server.errors import InvalidRequestError
from atoll.server.ingest.spool import FREE as FREE_UPLOADS
from atoll.server.stores import dialects
from atoll.server.stores.blob_place import BLOBS_FOLDER, CACHE_BYTES, BlobSettings
from atoll.server.stores.directory_blobs import FREE as FREE_BLOBS
from atoll.server.stores.errors import SchemaError
from atoll.server.stores.spare_copies import SpareCopies
from atoll.server.stores.store import SPOOL_FOLDER

MIB = 1 << 20
KEEP_EVENTS = 100_000
"""``keep_events`` unless the operator sets it."""
DAY_S = 86_400.0


class StorageSettings(BaseModel):
    """What is kept for how long, and the disk space that stays free. For released models see `keep_models` above."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    database: Annotated[
        str | None,
        Field(
            description="URL of a PostgreSQL database, such as `postgresql://atoll@db.example.org/atoll`; default: "
            "SQLite in the data directory. The URL must not contain the password, which libpq takes from "
            "`$PGPASSWORD` or `~/.pgpass`. The data directory notes the URL; `atoll server migrate` changes it.",
        ),
    ] = None
    blobs: Annotated[
        str | None,
        Field(
            description="URL of an object store for models and for uploads of live rounds, such as "
            "`s3://bucket/prefix` (or `gs://`, `az://`, `file://`); default: files in the data directory. Credentials "
            "come from the environment ([operations](operations.md#models-in-a-bucket)). The data directory notes the "
            "URL; `atoll server migrate` changes it.",
        ),
    ] = None
    blobs_endpoint: Annotated[
        str,
        Field(
            description="URL of an S3-compatible service, such as `https://minio.example.org:9000`; empty: the "
            "provider's, or `$AWS_ENDPOINT_URL`.",
        ),
    ] = ""
    blobs_region: Annotated[str, Field(description="Region of an S3 bucket; empty: `$AWS_REGION`, or `us-east-1`.")] = (
        ""
    )
    cache_mib: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 30,
            description="MiB in the data directory for copies of a bucket's models; the least recently used are "
            "removed first.",
        ),
    ] = CACHE_BYTES // MIB
    takeover_s: Annotated[
        float,
        Field(
            ge=2,
            le=3600,
            description="Seconds without a statement from the active server after which a standby at the same "
            "PostgreSQL database takes over; a server that exits is replaced at once.",
        ),
    ] = 3.0
    reserve_mib: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 20,
            description="MiB to leave free for the database and for releases. With less, uploads and new models are "
            "refused (`storage.full`) and no round begins until there is room again.",
        ),
    ] = 256
    keep_events: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000_000,
            description="Number of newest events to keep in the log of an active run. Events needed to resume it are "
            "always kept.",
        ),
    ] = KEEP_EVENTS
    keep_ended_days: Annotated[
        float,
        Field(
            ge=0,
            le=36_500,
            description="Days after a run's end when its event log, its optimiser state, and its models except the "
            "first, the best and the last are removed. From then on `atoll run extend` is refused. The three models, "
            "and the data for `atoll run show` and `report`, stay until `atoll run delete`.",
        ),
    ] = 30.0
    keep_credentials_days: Annotated[
        float,
        Field(
            ge=0,
            le=36_500,
            description="Days after which expired certificates and unused expired join tokens are removed from the "
            "database; certificates stay for at least `renewal_grace_s`.",
        ),
    ] = 7.0
    keep_audit_days: Annotated[
        float,
        Field(
            ge=1,
            le=36_500,
            description="Days after which entries of the audit log are removed; each removal adds an entry.",
        ),
    ] = 1095.0
    sweep_s: Annotated[
        float, Field(ge=1, le=7 * DAY_S, description="Seconds between two sweeps for data that can be removed.")
    ] = 3600.0

    @field_validator("database")
    @classmethod
    def _is_postgresql(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = dialects.parse_url(value)
        except SchemaError as error:
            raise ValueError(f"{error.detail.message}: {error.detail.remedy}") from None
        if url.get_backend_name() != "postgresql":
            raise ValueError("SQLite is the default, in the data directory: leave `database` out")
        return value

    @field_validator("blobs")
    @classmethod
    def _is_place(cls, value: str | None) -> str | None:
        if value is not None:
            _require_place(value)
        return value

    @field_validator("blobs_endpoint")
    @classmethod
    def _is_endpoint(cls, value: str) -> str:
        _require_place("s3://any", value)
        return value

    @model_validator(mode="after")
    def _is_bucket(self) -> StorageSettings:
        if self.blobs is None and (self.blobs_endpoint or self.blobs_region):
            raise ValueError("blobs_endpoint and blobs_region say how a bucket is reached: set `blobs` too")
        return self

    @property
    def bucket(self) -> BucketPlace | None:
        """The bucket in ``blobs``; None without one."""
        return None if self.blobs is None else parse_place(self.blobs, self.blobs_endpoint, self.blobs_region)

    @property
    def blob_settings(self) -> BlobSettings:
        """The place of blobs, and the size of the local cache of a bucket's blobs."""
        return BlobSettings(self.bucket, self.cache_mib * MIB)

    @property
    def reserve_bytes(self) -> int:
        """``reserve_mib`` in bytes."""
        return self.reserve_mib * MIB

    def room(self, data: Path) -> Room:
        """The free-space check of a data directory's disk; recycled files and cached blobs count as free."""
        folders = (data / BLOBS_FOLDER / FREE_BLOBS, data / SPOOL_FOLDER / FREE_UPLOADS)
        return Room(data, self.reserve_bytes, [*map(FreeFolder, folders), SpareCopies(data)])

    @property
    def keep_credentials_s(self) -> float:
        """``keep_credentials_days`` in seconds."""
        return self.keep_credentials_days * DAY_S

    @property
    def keep_audit_s(self) -> float:
        """``keep_audit_days`` in seconds."""
        return self.keep_audit_days * DAY_S

    @property
    def keep_ended_s(self) -> float:
        """``keep_ended_days`` in seconds."""
        return self.keep_ended_days * DAY_S


def _require_place(url: str, endpoint: str = "") -> None:
    try:
        parse_place(url, endpoint)
    except InvalidRequestError as error:
        raise ValueError(f"{error.detail.message}: {error.detail.remedy}") from None
