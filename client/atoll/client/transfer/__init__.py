"""Models down, updates up: verified, resumable, chunk by chunk."""

from atoll.client.transfer.cache import BlobCache
from atoll.client.transfer.calls import TransferCalls
from atoll.client.transfer.cut import cut_ranges
from atoll.client.transfer.link import ChunkTarget, Progress, TransferLink
from atoll.client.transfer.retry import Abandoned
from atoll.client.transfer.source import DeltaSource, ElementSource, Shard
from atoll.client.transfer.uploading import Uploading

__all__ = [
    "Abandoned",
    "BlobCache",
    "ChunkTarget",
    "DeltaSource",
    "ElementSource",
    "Progress",
    "Shard",
    "TransferCalls",
    "TransferLink",
    "Uploading",
    "cut_ranges",
]
