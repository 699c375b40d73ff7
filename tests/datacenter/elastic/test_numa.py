"""Binding ranks to processors: the options for torchrun's agent, and where binding is refused."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from atoll.datacenter.checks.start import check_devices, check_numa
from atoll.datacenter.elastic import launch
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.operation import Numa
from tests.datacenter.training import small

NODES = launch.Nodes(1, 1, "", "numa")


def job(mode: Numa) -> SiloJob:
    return SiloJob.model_validate(small(processes={"numa": mode}))


@pytest.mark.parametrize("mode", ["none", "node", "socket", "exclusive", "core-complex"])
def test_the_mode_reaches_torchruns_agent(mode: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    found: list[Any] = []

    def keep(spec: Any, *_: Any) -> Any:
        found.append(spec.numa_options)
        raise LayoutError("far enough")

    monkeypatch.setattr(launch, "Agent", keep)
    with pytest.raises(LayoutError, match="far enough"):
        launch.launch(job(mode), [], 1, NODES, 0, tmp_path, print)
    assert [one and one.affinity_mode.value for one in found] == [None if mode == "none" else mode]


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(LayoutError, match="binds ranks beside their GPU, and this machine has none: set"):
        check_devices(job("node"), 1)


def test_a_machine_without_numactl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(LayoutError, match="needs the program numactl: install it"):
        check_numa("socket")
    check_numa("none")
