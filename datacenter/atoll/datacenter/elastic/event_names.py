"""Names of the events that PyTorch records while nodes meet."""

from __future__ import annotations

import sys

from torch.distributed.elastic.rendezvous import dynamic_rendezvous


def name_events_quickly() -> None:
    """Let PyTorch find the method that records an event without reading source text; call before nodes meet.

    By default PyTorch lists the whole stack with its source at every event, and searches all loaded modules for each
    frame: two thirds of a launcher's processor time after its imports.
    """
    vars(dynamic_rendezvous)["get_method_name"] = method_name


def method_name(depth: int = 2) -> str:
    """Return the name of the function ``depth`` calls above this one."""
    return sys._getframe(depth).f_code.co_name  # noqa: SLF001  # documented, in spite of its name
