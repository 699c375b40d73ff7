"""Opens a bucket: obstore's store for its URL, with bounded waits."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atoll.server.buckets.credentials import shared_file
from atoll.server.buckets.errors import BucketRefusedError
from atoll.server.buckets.place import FILE, BucketPlace
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from atoll.server.buckets.bucket import Bucket

EXTRA = "object-storage"
CONNECT_S = 5.0
REQUEST_S = 30.0
"""Maximum seconds of one request, for which a thread waits; an upload or download in parts has one request per part."""
RETRY_S = 10.0
"""Seconds after its first attempt after which a failed request is not retried here; the caller then decides."""
_RETRIES = 5
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_ENDPOINTS = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}


def open_bucket(place: BucketPlace) -> Bucket:
    """Open a bucket without contacting its service.

    Raises:
        BucketRefusedError: if the library is not installed, or the place cannot be opened.
    """
    try:
        from atoll.server.buckets.bucket import Bucket  # noqa: PLC0415 - the library of an extra
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise BucketRefusedError(
            f"models in {place.url} need the package obstore", install_hint(f"server,{EXTRA}")
        ) from error
    root = Path(urlsplit(place.url).path) if place.scheme == FILE else None
    return Bucket(_store(place), place, root)


def _store(place: BucketPlace) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - the library of an extra
    from obstore.store import LocalStore, from_url  # noqa: PLC0415 - as above

    retries: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
    try:
        if place.scheme == FILE:
            return LocalStore(urlsplit(place.url).path, mkdir=True)
        found = shared_file() if place.scheme == "s3" else None
        credentials: Any = {} if found is None else {"credential_provider": found}
        return from_url(
            place.url, config=_config(place), client_options=_client(place), retry_config=retries, **credentials
        )
    except (BaseError, OSError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise BucketRefusedError(
            f"the object store cannot be opened: {said}", "correct [storage] blobs and its endpoint", where=place
        ) from error


def _config(place: BucketPlace) -> Any:
    config = {_ENDPOINTS[place.scheme]: place.endpoint} if place.endpoint else {}
    return config | ({"region": place.region} if place.region and place.scheme == "s3" else {})


def _client(place: BucketPlace) -> Any:
    options: dict[str, Any] = {"connect_timeout": timedelta(seconds=CONNECT_S), "timeout": timedelta(seconds=REQUEST_S)}
    endpoints = (place.endpoint, *(os.environ.get(name, "") for name in _ENDPOINT_VARIABLES))
    if any(endpoint.startswith("http://") for endpoint in endpoints):  # without TLS by the operator's choice
        options |= {"allow_http": True}
    return options
