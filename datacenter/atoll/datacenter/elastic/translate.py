"""Translate errors of collectives. PyTorch's back ends raise one type for all of them, with different texts."""

from __future__ import annotations

from collections.abc import Callable

from atoll.datacenter.errors import HungError, LostPeerError

_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection was closed")
_LATE = ("timed out", "timeout")


def translated(error: RuntimeError, explained: Callable[[], str]) -> Exception:
    """Return the job's error for an error of a collective.

    Args:
        error: the error that PyTorch raised.
        explained: returns which ranks did not arrive; called only after a timeout, as it takes seconds.

    Returns:
        ``LostPeerError``, ``HungError``, or the error itself.
    """
    text = str(error).lower()
    if any(words in text for words in _LOST):
        return LostPeerError("another rank is gone: its connections were closed")
    if any(words in text for words in _LATE):
        return HungError(explained())
    return error
