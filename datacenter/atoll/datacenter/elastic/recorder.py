"""This rank's collectives from PyTorch's flight recorder: which have begun and which are still in progress.

The recorder keeps the last ``TORCH_FR_BUFFER_SIZE`` of them, for gloo and NCCL alike (NCCL: not run on GPU).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._C import _distributed_c10d

SIZE = 512
"""Collectives kept."""
_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that has begun.

    Attributes:
        name: e.g. ``gloo:all_reduce``.
        group: number and purpose of its group of ranks.
        sequence: its number in the group.
        shapes: shapes of its inputs.
        age_s: seconds since it began.
    """

    name: str
    group: str
    sequence: int
    shapes: str
    age_s: float

    def __str__(self) -> str:
        return f"{self.name} number {self.sequence} of group {self.group}, {self.shapes}"


@dataclass(frozen=True, slots=True)
class Recording:
    """Collectives of one rank.

    Attributes:
        waiting: the collective in progress for longest; None if there is none.
        begun: number of the last collective begun, by group.
    """

    waiting: Collective | None
    begun: Mapping[str, int]


def switch_on() -> None:
    """Enable the recorder; must be called before the process group is created."""
    os.environ.setdefault(_SIZE_VARIABLE, str(SIZE))


def recording() -> Recording:
    """Return this rank's collectives; empty if the recorder is off."""
    return read(_dump(), time.time_ns())


def read(dump: bytes, now_ns: int) -> Recording:
    """Read a dump in the recorder's JSON, version 2.x."""
    entries = [entry for entry in json.loads(dump or b"{}").get("entries", ()) if not entry["is_p2p"]]
    begun: dict[str, int] = {}
    for entry in entries:
        group = _group(entry)
        begun[group] = max(begun.get(group, 0), int(entry["collective_seq_id"]))
    waiting = min((entry for entry in entries if not entry["retired"]), key=_created_ns, default=None)
    return Recording(None if waiting is None else _collective(waiting, now_ns), begun)


def _collective(entry: Mapping[str, Any], now_ns: int) -> Collective:
    shapes = ", ".join(
        f"{dtype} {shape}" for dtype, shape in zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    )
    age_s = (now_ns - _created_ns(entry)) / _NS_PER_S
    return Collective(
        str(entry["profiling_name"]), _group(entry), int(entry["collective_seq_id"]), shapes or "no data", age_s
    )


def _group(entry: Mapping[str, Any]) -> str:
    number, purpose = entry["process_group"]
    return f"{number} ({purpose})" if purpose else str(number)


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry["time_created_ns"])


def _dump() -> bytes:
    """Dump all back ends with one call, or only NCCL where PyTorch lacks it; neither call has a public name."""
    dump: Callable[[], bytes] | None = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    dump = dump or getattr(_distributed_c10d, "_dump_nccl_trace_json", None)
    return dump() if dump is not None else b""
