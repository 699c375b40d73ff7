"""Measure one device: matrix products in each number format that it supports, and its memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from atoll.datacenter.machine.timing import Timing, measure
from atoll.processes.memory import memory_bytes

_CPUINFO = Path("/proc/cpuinfo")
_FLOAT8_CAPABILITY = (8, 9)
FORMATS = ("float32", "tfloat32", "bfloat16", "float16", "float8")


@dataclass(frozen=True, slots=True)
class MatmulRate:
    """Rate of products of two square matrices.

    Attributes:
        number_format: format of the factors.
        size: rows and columns.
        flops_per_s: ``2 size^3`` divided by the median seconds.
        timing: seconds of one product.
    """

    number_format: str
    size: int
    flops_per_s: float
    timing: Timing


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """Rate of a copy within the device's memory.

    Attributes:
        size_bytes: bytes copied.
        bytes_per_s: bytes read and written, ``2 size_bytes`` divided by the median seconds.
        timing: seconds of one copy.
    """

    size_bytes: int
    bytes_per_s: float
    timing: Timing


def measure_matmul(device: torch.device, number_format: str, size: int) -> MatmulRate | None:
    """Measure products of this size on all ranks at once; None if the device does not support the format."""
    with _precision(number_format):
        product = _product(device, number_format, size)
        if product is None:
            return None
        timing = measure(product, device, together=True)
    return MatmulRate(number_format, size, 2 * size**3 / timing.seconds, timing)


def measure_memory(device: torch.device, size_bytes: int) -> MemoryRate:
    """Measure a copy larger than any cache, on all ranks at once."""
    source = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), device, together=True)
    return MemoryRate(size_bytes, 2 * size_bytes / timing.seconds, timing)


def device_name(device: torch.device) -> str:
    """Return a short name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = [text.partition(":")[2].strip() for text in _cpuinfo() if text.startswith("model name")]
    return f"{os.cpu_count()} cores {names[0] if names else 'CPU'}"


def device_memory_bytes(device: torch.device, ranks_per_node: int) -> int:
    """Return the memory of one rank's device; on a CPU, its share of the machine's memory, or of the container's."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return memory_bytes() // ranks_per_node


def _product(device: torch.device, number_format: str, size: int) -> Callable[[], Tensor] | None:
    if number_format == "float8":
        return _float8_product(device, size)
    if number_format == "tfloat32" and device.type != "cuda":
        return None
    dtype = torch.float32 if number_format == "tfloat32" else getattr(torch, number_format)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def _float8_product(device: torch.device, size: int) -> Callable[[], Tensor] | None:
    """Scale by one factor per matrix, which is the fastest; the second matrix is stored by columns."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FLOAT8_CAPABILITY:
        return None
    left, right = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    whole = functional.ScalingType.TensorWise
    return lambda: functional.scaled_mm(left, right.t(), one, whole, one, whole, use_fast_accum=True)


@contextlib.contextmanager
def _precision(number_format: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if number_format == "tfloat32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _cpuinfo() -> list[str]:
    try:
        return _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
