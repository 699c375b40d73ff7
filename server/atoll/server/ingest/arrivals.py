"""When uploads began; for the timeline of a round, not for its result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from atoll.server.ingest.upload_ref import UploadRef

REMEMBERED = 16_384
"""Maximum number of unreported uploads whose start time is kept; the oldest is forgotten first."""


class Arrivals:
    """Remembers in memory when the first byte of each upload came to this process.

    Args:
        clock: epoch seconds, UTC.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: OrderedDict[UploadRef, float] = OrderedDict()

    def began(self, upload: UploadRef) -> None:
        """A stream of this upload begins; only the first one counts."""
        self._first.setdefault(upload, self._clock())
        if len(self._first) > REMEMBERED:
            self._first.popitem(last=False)

    def reported(self, upload: UploadRef) -> None:
        """The report of this upload is recorded, with its start time: forget it here."""
        self._first.pop(upload, None)

    def first_byte_at(self, upload: UploadRef) -> float:
        """Epoch seconds; 0 if the upload began in another process, or too long ago."""
        return self._first.get(upload, 0.0)
