"""Run a rank's work: its errors become one message for the launcher, and an exit status that says what to do."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.elastic.recorder import switch_on
from atoll.datacenter.elastic.watch import FOLDER_VARIABLE
from atoll.datacenter.errors import DatacenterError, HungError, LostPeerError


def run_rank(work: Callable[[], None]) -> None:
    """Run a rank's work. If it fails, end the process at once, without waiting for threads that use lost ranks.

    A ``DatacenterError`` is reported in a line, any other error with its traceback: in the file where ``torchrun``
    looks for it, and on standard error, unless that belongs to our launcher, which reads the file.
    """
    switch_on()
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the launcher must hear of any error
        get_error_handler().record_exception(error)
        if not (FOLDER_VARIABLE in os.environ and os.environ.get("LOCAL_RANK") == "0"):
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
