"""End a rank with an error: what it means, a message for the launcher, and an exit status that says what to do."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.errors import DatacenterError, HungError, LostPeerError

FOLDER_VARIABLE = "ATOLL_SILO_RANKS"
"""Environment variable with the folder from which the launcher reads each rank's process and outcome."""

PRINTS_VARIABLE = "ATOLL_SILO_PRINTS"
"""Environment variable, set for a rank other than local rank 0 that shares the launcher's output."""

_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection was closed")
_LATE = ("timed out", "timeout")


def translated(error: RuntimeError, explained: Callable[[], str]) -> Exception:
    """Return the job's error for an error of a collective: PyTorch's back ends raise one type, with different texts.

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


def end_rank(error: Exception) -> NoReturn:
    """End the process at once, from any thread, without waiting for threads that use lost ranks.

    A ``DatacenterError`` is reported in a line, any other error with its traceback: in the file where ``torchrun``
    looks for it, and on standard error, unless that belongs to our launcher, which reads the file.
    """
    get_error_handler().record_exception(error)
    prints = os.environ.get("LOCAL_RANK") == "0" or PRINTS_VARIABLE in os.environ
    if not (FOLDER_VARIABLE in os.environ and prints):
        _say(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status_of(error))


def _say(error: Exception) -> None:
    if isinstance(error, DatacenterError):
        sys.stderr.write(f"error: {error}\n")
    else:
        traceback.print_exception(error)


def status_of(error: BaseException) -> Exit:
    """Return the exit status for an error."""
    match error:
        case HungError():
            return Exit.HUNG
        case LostPeerError():
            return Exit.LOST_PEER
        case DatacenterError():
            return Exit.FINAL
        case _:
            return Exit.FAILED
