"""Bind ranks to the processors and the memory beside their GPU, through torchrun's agent (``torch.numa``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.numa.binding import AffinityMode, NumaOptions

if TYPE_CHECKING:
    from atoll.datacenter.job.operation import Numa


def numa_options(mode: Numa) -> NumaOptions | None:
    """Return the options for torchrun's agent; None for ``none``."""
    return None if mode == "none" else NumaOptions(affinity_mode=AffinityMode(mode))
