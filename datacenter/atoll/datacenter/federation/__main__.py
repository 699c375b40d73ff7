"""The program of each rank of a silo: ``torchrun … -m atoll.datacenter.federation JOB.toml --state …``."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from atoll.client import Access, Limits
from atoll.client.silo import (
    HumanLines,
    JsonLines,
    MakeWork,
    Session,
    access_options,
    configure_logging,
    locked,
    state_option,
)
from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.federation.journal import NAME, Journal
from atoll.datacenter.federation.memory_check import MemoryCheck
from atoll.datacenter.federation.orders import Orders, open_store
from atoll.datacenter.federation.policy import silo_policy
from atoll.datacenter.federation.residuals import FOLDER
from atoll.datacenter.federation.session_thread import SessionThread, SiloParticipant
from atoll.datacenter.federation.silo import Silo
from atoll.datacenter.federation.spending import Spending
from atoll.datacenter.job import SiloJob, load_job
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.trainer import open_trainer
from atoll.processes.heap import keep_chunks


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@state_option("The silo's own directory: identity, usage.")
@access_options
@click.option("--max-rounds", type=click.IntRange(min=0), default=0)
@click.option("--json", "as_json", is_flag=True)
def main(**given: Any) -> None:
    """Take part in a federation as one rank of the silo that JOB_FILE describes. The silo must be enrolled."""
    options = Options(**given)
    configure_logging("warning", as_json=options.as_json)
    keep_chunks()  # memory left by training is returned before each exchange
    job = load_job(options.job_file)
    timeout_s = job.faults.collective_timeout_s
    with (
        join_world(timeout_s, on_host=job.data_parallel.cpu_offload) as world,
        Watch(world, timeout_s) as watch,
        ExitStack() as stack,
    ):
        trainer = stack.enter_context(open_trainer(job, options.job_file.parent, world, watch))
        session_thread = spending = None
        if world.is_first:
            stack.enter_context(locked(options.state))
            if trainer.mechanism is not None:
                spending = Spending.of(job, trainer.mechanism.budget, options.state, options.job_file.parent)
            memory_check = MemoryCheck.of(job, trainer.step.passes.parts, world)
            kept = trainer.checkpoints.folder
            journal = Journal(None if kept is None else kept / FOLDER / NAME)
            make = partial(options.session, job, world, spending, memory_check)
            session_thread = stack.enter_context(SessionThread(make, journal))
        orders = Orders(world, open_store("federation"), watch.stopping)
        scratch = _scratch(job, options.job_file)
        silo = Silo(
            trainer, spec_of(job.model), orders, session_thread, options.access.endpoint, Limits(), scratch, spending
        )
        silo.run()
        if session_thread is not None:
            session_thread.summary()
        watch.ended("stopped" if watch.stopping() else "finished", trainer.state.step)


@dataclass(frozen=True)
class Options:
    """Options of the command line, as ``atoll silo join`` passes them."""

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
        """Access to the server."""
        return Access("", self.state, self.server, self.insecure, self.participant)

    def session(
        self, job: SiloJob, world: World, spending: Spending | None, memory_check: MemoryCheck, make_work: MakeWork
    ) -> Session:
        """Make the session of rank 0."""
        participant = SiloParticipant(_declared(job), spending, memory_check)
        found = Session(participant, self.access.endpoint(), self.state, make_work=make_work)
        found.policy = silo_policy(self.policy)
        found.observer = JsonLines() if self.as_json else HumanLines()
        found.labels, found.max_rounds = {"ranks": str(world.size), **dict(self.labels)}, self.max_rounds
        return found


def _declared(job: SiloJob) -> int:
    """Return the weight of the longest round that the job allows: no update of this silo exceeds it."""
    sequences = job.federation.most_inner_steps * job.batch.global_batch
    return sequences if job.federation.weight == "sequences" else sequences * job.batch.sequence


def _scratch(job: SiloJob, job_file: Path) -> Path:
    if job.federation.scratch is not None:
        return job_file.parent / job.federation.scratch
    return Path(tempfile.gettempdir())


if __name__ == "__main__":
    run_rank(lambda: main(standalone_mode=False))
