"""Check that this machine can bind ranks to processors."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.errors import LayoutError

if TYPE_CHECKING:
    from atoll.datacenter.job.operation import Numa


def check_numa(mode: Numa) -> None:
    """Check that this machine can bind ranks.

    Raises:
        LayoutError: naming what is missing.
    """
    if mode == "none":
        return
    if not torch.cuda.is_available():
        raise LayoutError(
            f'processes.numa = "{mode}" binds ranks beside their GPU, and this machine has none: set "none"'
        )
    if shutil.which("numactl") is None:
        raise LayoutError(
            f'processes.numa = "{mode}" needs the program numactl: install it (Debian: apt install numactl), or set '
            '"none"'
        )
