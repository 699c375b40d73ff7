"""Object stores: buckets of S3, Google Cloud Storage and Azure, and folders that stand in for one.

``place`` names a bucket, ``opening`` opens it, ``bucket`` has its operations, and ``owner`` identifies the owning
federation. obstore, the library of the extra ``object-storage``, is loaded when a bucket is opened.
"""

from atoll.server.buckets.errors import (
    BucketRefusedError,
    BucketUnavailableError,
    ForeignBucketError,
    ObjectMissingError,
)
from atoll.server.buckets.opening import open_bucket
from atoll.server.buckets.place import BucketPlace, parse_place

__all__ = [
    "BucketPlace",
    "BucketRefusedError",
    "BucketUnavailableError",
    "ForeignBucketError",
    "ObjectMissingError",
    "open_bucket",
    "parse_place",
]
