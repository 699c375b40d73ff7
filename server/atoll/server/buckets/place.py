"""A place in a bucket: a URL such as ``s3://bucket/prefix``, and how to reach its service."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from atoll.server.errors import InvalidRequestError

FILE = "file"
SCHEMES = ("s3", "gs", "az", FILE)
_PREFIX = re.compile(r"[A-Za-z0-9._/=-]*")
_EXAMPLE = "give one such as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///mnt/shared/atoll"


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A place in an object store. It has no credentials, which come from the environment.

    Attributes:
        url: scheme, bucket and prefix, as ``parse_place`` returns it.
        endpoint: URL of the service, for S3-compatible stores; empty for the provider's, or the one in the environment.
        region: region of the bucket; empty for the one in the environment.
    """

    url: str
    endpoint: str = ""
    region: str = ""

    @property
    def scheme(self) -> str:
        """One of ``SCHEMES``."""
        return self.url.partition(":")[0]

    def __str__(self) -> str:
        """The place for messages."""
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url


def parse_place(url: str, endpoint: str = "", region: str = "") -> BucketPlace:
    """Parse the place of a bucket.

    Raises:
        InvalidRequestError: for another scheme, a missing bucket, or a URL with credentials, since URLs are written to
            files and logs.
    """
    for text in (url, endpoint):
        try:
            urlsplit(text)
        except ValueError:
            named = text.rpartition("@")[2].partition("?")[0]
            raise InvalidRequestError("bucket.url", f"{named[:160]!r} cannot be read as a URL", _EXAMPLE) from None
        if urlsplit(text).query or "@" in urlsplit(text).netloc:
            raise InvalidRequestError(
                "bucket.url",
                f"the URL of {_shown(text)} holds more than scheme, place and prefix, and URLs are written to files",
                "leave credentials out: they come from the environment, such as $AWS_ACCESS_KEY_ID",
            )
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    if parts.scheme not in SCHEMES:
        raise InvalidRequestError("bucket.url", f"{url[:160]!r} names no object store", _EXAMPLE)
    if bool(parts.netloc) is (parts.scheme == FILE) or (parts.scheme == FILE and not prefix):
        raise InvalidRequestError("bucket.url", f"{url[:160]!r} names no bucket, or no absolute path", _EXAMPLE)
    if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")) or parts.fragment:
        raise InvalidRequestError("bucket.url", f"the prefix of {url[:160]!r} cannot name objects", _EXAMPLE)
    if endpoint and urlsplit(endpoint).scheme not in {"http", "https"}:
        raise InvalidRequestError("bucket.url", f"endpoint {endpoint[:160]!r} is not a URL", "give https://host[:port]")
    whole = f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    return BucketPlace(whole, endpoint.rstrip("/"), region)


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}"
