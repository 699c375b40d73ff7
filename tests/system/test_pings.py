"""``--ping-s`` of a server process reaches the participants' processes."""

from __future__ import annotations

import json

import pytest

from tests.system.conftest import Hire
from tests.system.operators import job_toml
from tests.system.processes import Nursery
from tests.system.reference import MODEL
from tests.system.servers import serving

pytestmark = pytest.mark.system


def test_a_participant_follows_the_interval_of_its_server(processes: Nursery, hire: Hire) -> None:
    """It opens its channel with the interval before it reads an invitation, and keeps it in ``pings.json``."""
    with serving(processes, "slow-pings", "--ping-s", "12") as server:
        crew = hire(server)
        participant = crew.start("Steady", index=0)
        job = job_toml(job={"name": "pings", "rounds": 1}, cohort={"size": 1, "quorum": 1})
        server.operator.finished(server.operator.submit(job, MODEL))
        assert json.loads((participant.state / "pings.json").read_text()) == {"ping_s": 12.0}
        server.stop()
        server.options = ()
        server.start()
        server.operator.finished(server.operator.submit(job, MODEL))
        assert json.loads((participant.state / "pings.json").read_text()) == {"ping_s": 10.0}
