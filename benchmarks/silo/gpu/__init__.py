"""One GPU: tokens/s and share of the peak (MFU) beside torchtitan's recipe, float8, DP-SGD, a rank killed.

A row that cannot run (a library is missing, memory runs out) is reported and left out; the others are measured. Without
a GPU only ``--smoke`` runs: the same code on tiny models on the CPU, without compilation and float8.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

import torch

from atoll.datacenter.elastic.environment import grow_segments
from benchmarks.figures import Figure
from benchmarks.options import progress
from benchmarks.silo.gpu.rows import ROWS
from benchmarks.silo.gpu.sizes import FULL, SMOKE


def run(smoke: bool, wanted: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield each row's figures as soon as they are measured; nothing without a GPU, unless it is a smoke run.

    Args:
        smoke: tiny models.
        wanted: names of rows, in the order in which they are measured; empty: all.

    Raises:
        ExceptionGroup: at the end, with the errors of the rows that failed.
    """
    if not (smoke or torch.cuda.is_available()):
        progress("gpu: not run on GPU: this machine has none")
        return
    grow_segments()  # as ranks of a job do
    failures: list[Exception] = []
    for name in wanted or ROWS:
        progress(f"gpu: {name}")
        try:
            yield from ROWS[name](SMOKE if smoke else FULL)
        except Exception as failure:  # noqa: BLE001  # the other rows are measured all the same; raised below
            progress(f"gpu: {name} is left out:\n{traceback.format_exc()}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup("rows that could not be measured", failures)
