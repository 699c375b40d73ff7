"""A run of the reference job in the middle of its second round: two have reported, one is at work."""

from __future__ import annotations

from dataclasses import dataclass

from tests.system.clients import Client, Crew
from tests.system.operators import Arrays
from tests.system.reference import JOB, MODEL
from tests.system.servers import Server


@dataclass(frozen=True)
class MidRound:
    """The run; the clients that have reported in round 1, and the one that is held in it."""

    run: str
    done: list[Client]
    at_work: Client


def mid_round(server: Server, crew: Crew, *options: str, job: str = JOB, model: Arrays = MODEL) -> MidRound:
    """Start three clients with these options and a run, and wait until its round 1 lacks one report."""
    done = [crew.start("Steady", *options, index=0), crew.start("Steady", *options, index=1)]
    at_work = crew.start("Held", *options, index=2, rounds=[1])
    run = server.operator.submit(job, model)
    at_work.wait("held", round=1)
    for client in done:
        client.wait("reported", round=1)
    return MidRound(run, done, at_work)
