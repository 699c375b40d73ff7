"""Ray instances that a simulation starts, and killed simulations that continue on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.simulation import Federation
from tests.patience import WAIT_S
from tests.simulation.resuming.scenarios import KILLED, RESTLESS, asynchronous
from tests.simulation.test_federation import MODEL
from tests.simulation.test_process_pool import Random

PROGRAM = """
import sys

import ray

from atoll.simulation import Federation, RayWorkers
from tests.simulation.resuming.scenarios import RESTLESS, asynchronous, dying
from tests.simulation.test_federation import MODEL
from tests.simulation.test_process_pool import Random

federation = Federation(participants=Random, population=8, behaviour=RESTLESS)
with dying(int(sys.argv[2]), stored=True):
    found = federation.run(asynchronous(), initial=MODEL, workers=RayWorkers(2), folder=sys.argv[1])
assert not ray.is_initialized()
print(found.digest)
"""
NEVER = 1 << 30


def played(folder: Path, append: int) -> subprocess.CompletedProcess[str]:
    """Play in a separate process that starts Ray, and that ends as if killed at an append to the run's journal."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(append)],
        cwd=Path(__file__).parents[3],
        env=own,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )


@pytest.mark.every_fault
def test_on_a_ray_of_its_own_a_killed_simulation_ends_with_the_bits_of_one_process(tmp_path: Path) -> None:
    """Late reports are carried, so waiting updates are computed again by other workers."""
    federation = Federation(participants=Random, population=8, behaviour=RESTLESS)
    expected = federation.run(asynchronous(), initial=MODEL).digest
    killed = played(tmp_path, 20)
    assert killed.returncode == KILLED, killed.stderr
    done = played(tmp_path, NEVER)
    assert done.stdout.split() == [expected], done.stderr
