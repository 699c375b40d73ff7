"""A stand-in for ``torch.cuda`` on a machine without a GPU: its number of GPUs, and each process's limit of memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.client import Participant
from atoll.simulation.gpus import VISIBLE
from tests.simulation.test_federation import Stepping


def pretend(patch: pytest.MonkeyPatch, folder: Path, devices: int) -> None:
    """Make PyTorch see this many GPUs in this process and its forks; limits of memory are written into ``folder``."""
    patch.setattr("torch.cuda.device_count", lambda: devices)
    patch.setattr("torch.cuda.set_per_process_memory_fraction", limiting(folder))


def limiting(folder: Path) -> Callable[[float], None]:
    """A stand-in for ``set_per_process_memory_fraction`` that records, once, what a process sees and may take."""

    def limit(share: float) -> None:
        with (folder / f"{os.getpid()}.json").open("x") as file:
            json.dump([os.environ[VISIBLE], share], file)

    return limit


class Limited:
    """Makes participants; in the process that it is sent to, limits of memory are written into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> Participant:
        return Stepping(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return _limited, (self.folder,)


def _limited(folder: Path) -> Limited:
    setattr(torch.cuda, "set_per_process_memory_fraction", limiting(folder))  # noqa: B010 - another signature
    return Limited(folder)


def limits(folder: Path) -> dict[int, Any]:
    """What each process saw and could take, by its id."""
    return {int(file.stem): json.loads(file.read_text()) for file in folder.glob("*.json")}
