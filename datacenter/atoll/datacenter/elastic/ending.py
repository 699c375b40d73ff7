"""End a rank with an error: a message for the launcher, and an exit status that says what to do."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.errors import DatacenterError, HungError, LostPeerError

FOLDER_VARIABLE = "ATOLL_SILO_RANKS"
"""Environment variable with the folder from which the launcher reads each rank's process and outcome."""

PRINTS_VARIABLE = "ATOLL_SILO_PRINTS"
"""Environment variable, set for a rank other than local rank 0 that shares the launcher's output."""


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
