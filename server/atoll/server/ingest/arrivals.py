"""Start times of uploads, for the timeline of a round but not for its result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from atoll.server.ingest.upload_ref import UploadRef

REMEMBERED = 16_384
"""Maximum number of unreported uploads whose start times are kept; the oldest is forgotten first."""


class Arrivals:
    """Remembers when the first byte of each upload arrived in this process.

    Args:
        clock: epoch seconds, UTC.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: OrderedDict[UploadRef, float] = OrderedDict()

    def began(self, upload: UploadRef) -> None:
        """Note the beginning of a stream of this upload; only the first stream counts."""
        self._first.setdefault(upload, self._clock())
        if len(self._first) > REMEMBERED:
            self._first.popitem(last=False)

    def reported(self, upload: UploadRef) -> None:
        """Forget an upload whose report has been recorded together with its start time."""
        self._first.pop(upload, None)

    def first_byte_at(self, upload: UploadRef) -> float:
        """Epoch seconds; 0 if the upload began in another process, or too long ago."""
        return self._first.get(upload, 0.0)
