"""What PyTorch's errors of collectives mean. Its back ends have no types for them, only words."""

from __future__ import annotations

from collections.abc import Callable

from atoll.datacenter.errors import HungError, LostPeerError

_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection was closed")
_LATE = ("timed out", "timeout")


def translated(error: RuntimeError, explained: Callable[[], str]) -> Exception:
    """The error of a job that a collective's error is.

    Args:
        error: as PyTorch raised it.
        explained: who did not arrive; asked only when a collective was too late, for it takes seconds.

    Returns:
        ``LostPeerError``, ``HungError``, or the error itself.
    """
    text = str(error).lower()
    if any(words in text for words in _LOST):
        return LostPeerError("another rank is gone: its connections were closed")
    if any(words in text for words in _LATE):
        return HungError(explained())
    return error
