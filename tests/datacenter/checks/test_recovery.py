"""Jobs that cannot recover in place are refused before a process starts, with the reason and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.elastic.launch import Nodes, launch
from atoll.datacenter.elastic.replicas.link import TICKET_VARIABLE, Ticket
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import ParallelDims, World, join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from tests.datacenter.training import small
from tests.patience import WAIT_S

FAULTS = {"recovery": "in-place"}
MOE = {"experts": 4, "top_k": 2, "expert_dim": 32}


def job(**sections: dict[str, Any]) -> SiloJob:
    faults = FAULTS | sections.pop("faults", {})
    return SiloJob.model_validate(small(**{"mesh": {"dp_replicate": 2}, **sections}, faults=faults))


@pytest.mark.parametrize(
    ("ranks", "sections", "said"),
    [
        (
            2,
            {"mesh": {}, "data_parallel": {"method": "zero3"}},
            "at least two replica groups, and mesh.dp_replicate is 1",
        ),
        (2, {"mesh": {"tp": 2}}, "cut by dp_shard, tp, pp or cp alone has no second copy"),
        (2, {"mesh": {"pp": 2}}, "cut by dp_shard, tp, pp or cp alone has no second copy"),
        (2, {"faults": {"backup_replicas": 2}}, "are together more than mesh.dp_replicate = 2"),
        (2, {"faults": {"min_replicas": 2, "backup_replicas": 1}}, "are together more than mesh.dp_replicate = 2"),
        (2, {"data_parallel": {"hook": "int8"}}, 'data_parallel.hook = "int8", whose residuals'),
        (2, {"data_parallel": {"uneven": True}}, "data_parallel.uneven = true, which moves rows"),
        (2, {"data_parallel": {"check_replicas_every": 3}}, "data_parallel.check_replicas_every = 3, which compares"),
        (2, {"model": {"moe": MOE}}, "[model.moe], whose router"),
        (2, {"checkpoint": {"folder": "kept"}}, "checkpoint.every_steps is needed"),
    ],
)
def test_refused(ranks: int, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check_layout(job(**sections), ranks)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "sections", "dims"),
    [
        (2, {}, ParallelDims(dp_replicate=2)),
        (4, {"data_parallel": {"method": "zero3"}}, ParallelDims(dp_replicate=2, dp_shard=2)),
        (4, {"mesh": {"dp_replicate": 2, "tp": 2}}, ParallelDims(dp_replicate=2, tp=2)),
        (2, {"checkpoint": {"folder": "kept", "every_steps": 5}}, ParallelDims(dp_replicate=2)),
    ],
)
def test_what_fits_passes(ranks: int, sections: dict[str, Any], dims: ParallelDims) -> None:
    assert check_layout(job(**sections), ranks) == dims


@pytest.mark.parametrize(
    "faults", [{"recovery": "restart", "backup_replicas": 1}, {"min_replicas": 2}, {**FAULTS, "min_world": 2}]
)
def test_settings_of_the_other_kind_of_recovery_are_refused(faults: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="has no effect: recovery = "):
        SiloJob.model_validate(small(faults=faults))


def test_several_machines_are_refused(tmp_path: Path) -> None:
    nodes = Nodes(1, 2, "127.0.0.1:1", "name")
    with pytest.raises(LayoutError, match="is for one machine"):
        launch(job(), [], 1, nodes, 0, tmp_path, print)


def test_another_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TICKET_VARIABLE, raising=False)
    with pytest.raises(LayoutError, match="needs `atoll silo train`"):
        Ticket.of_environment()


def test_a_script_and_a_federation_are_refused(tmp_path: Path) -> None:
    """They open a trainer without a replica group."""

    def opened(world: World) -> None:
        with open_trainer(job(mesh={"dp_replicate": 1}), tmp_path, world, Unwatched(), console=False):
            pass

    with join_world(WAIT_S) as world, pytest.raises(LayoutError, match="at least two replica groups"):
        opened(world)
