from __future__ import annotations

import sys
from typing import Any

import pytest

from atoll.simulation import Cohort, Federation, Job, RayWorkers, SetupError
from atoll.simulation.task_runner import TaskRunner
from tests.simulation.test_federation import MODEL, Stepping
from tests.simulation.test_process_pool import Counting


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, r"RayWorkers\(count=0\): give 1 to 4096, or None"),
        ({"cpus": 0.0}, r"RayWorkers\(cpus=0.0\): give a number above 0"),
        ({"gpus": -1.0}, r"RayWorkers\(gpus=-1.0\): give a share from 0 to 1, or a whole number"),
        ({"gpus": 1.5}, r"RayWorkers\(gpus=1.5\): give a share"),
        ({"cpus": float("nan")}, "cpus=nan"),
        ({"start_s": float("inf")}, "start_s=inf"),
    ],
)
def test_workers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        RayWorkers(**options)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("atoll.simulation.cluster.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    federation = Federation(participants=Stepping, population=2)
    with pytest.raises(SetupError, match=r'workers on Ray need it: pip install .*"\.\[server,ray\]"'):
        federation.run(Job(rounds=1, cohort=Cohort(size=2)), initial=MODEL, workers=RayWorkers(1))


def test_participants_that_keep_files_are_refused_where_there_is_no_folder() -> None:
    with pytest.raises(
        SetupError, match=r"gave a Counting, which keeps files .prepare.; a folder stays on one machine"
    ):
        TaskRunner(lambda _: Counting(0), None, None).facts("p0", 0)
