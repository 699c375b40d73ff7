"""What each rank of a silo runs: ``torchrun --nproc-per-node 4 -m atoll.datacenter.federation JOB.toml --state …``."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from atoll.client import Access, Limits
from atoll.client.cli.options import access_options, state_option
from atoll.client.cli.output import HumanLines, JsonLines
from atoll.client.files import locked
from atoll.client.logs import configure_logging
from atoll.client.session import Session
from atoll.client.session.work import MakeWork
from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.federation.desk import SiloDesk, SiloParticipant
from atoll.datacenter.federation.orders import Orders, open_store
from atoll.datacenter.federation.policy import silo_policy
from atoll.datacenter.federation.silo import Silo
from atoll.datacenter.federation.spending import Spending
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.trainer import open_trainer
from atoll.wire.heap import keep_chunks


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@state_option("The silo's own directory: identity, usage.")
@access_options
@click.option("--max-rounds", type=click.IntRange(min=0), default=0)
@click.option("--json", "as_json", is_flag=True)
def main(**given: Any) -> None:
    """Take part in a federation as one rank of the silo that JOB_FILE describes; enrolled already."""
    options = Options(**given)
    configure_logging("warning", as_json=options.as_json)
    keep_chunks()  # what training leaves in the heap is given back before each exchange
    job = load_job(options.job_file)
    timeout_s = job.faults.collective_timeout_s
    with join_world(timeout_s) as world, Watch(world, timeout_s) as watch, ExitStack() as stack:
        trainer = stack.enter_context(open_trainer(job, options.job_file.parent, world, watch))
        desk = spending = None
        if world.is_first:
            stack.enter_context(locked(options.state))
            if trainer.mechanism is not None:
                spending = Spending.of(job, trainer.mechanism.budget, options.state)
            desk = stack.enter_context(SiloDesk(partial(options.session, job, world, spending)))
        orders = Orders(world, open_store("federation"), watch.stopping)
        scratch = _scratch(job, options.job_file)
        silo = Silo(trainer, spec_of(job.model), orders, desk, options.access.endpoint, Limits(), scratch, spending)
        silo.run()
        if desk is not None:
            desk.summary()
        watch.ended("stopped" if watch.stopping() else "finished", trainer.state.step)


@dataclass(frozen=True)
class Options:
    """The command line: see ``atoll silo join``, which gives it."""

    job_file: Path
    state: Path
    server: str
    insecure: bool
    participant: str
    policy: Path | None
    max_rounds: int
    labels: tuple[tuple[str, str], ...]
    as_json: bool

    @property
    def access(self) -> Access:
        """How to reach the server."""
        return Access("", self.state, self.server, self.insecure, self.participant)

    def session(self, job: SiloJob, world: World, spending: Spending | None, make_work: MakeWork) -> Session:
        """Rank 0's."""
        participant = SiloParticipant(_declared(job), spending)
        found = Session(participant, self.access.endpoint(), self.state, make_work=make_work)
        found.policy = silo_policy(self.policy)
        found.observer = JsonLines() if self.as_json else HumanLines()
        found.labels, found.max_rounds = {"ranks": str(world.size), **dict(self.labels)}, self.max_rounds
        return found


def _declared(job: SiloJob) -> int:
    """The weight of the longest round that the job allows: what no update of this silo goes beyond."""
    sequences = job.federation.most_inner_steps * job.batch.global_batch
    return sequences if job.federation.weight == "sequences" else sequences * job.batch.sequence


def _scratch(job: SiloJob, job_file: Path) -> Path:
    if job.federation.scratch is not None:
        return job_file.parent / job.federation.scratch
    return Path(tempfile.gettempdir())


if __name__ == "__main__":
    run_rank(lambda: main(standalone_mode=False))
