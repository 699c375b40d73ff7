"""The class of the Ray actors: a task runner with one numeric thread, and an integer sum for each open round."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import ray

from atoll.client import Policy
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.simulation.cluster.array_sum import ArraySum, merged
from atoll.simulation.errors import SetupError
from atoll.simulation.gpus import limit_memory
from atoll.simulation.participant_objects import Make
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.tasks import Facts, Opening, Outcome, TaskRequest
from atoll.simulation.threads import one_thread
from atoll.simulation.worker_pool import Key


@dataclass(frozen=True)
class Setup:
    """Settings of every worker: participant factory, policy, number of kept objects, GPUs."""

    make: Make
    policy: Policy | None
    keep: int
    gpus: float = 0.0


class Worker:
    """Runs tasks in an actor's process; its methods run one after the other, in the order of the calls."""

    def __init__(self) -> None:
        self._threads = contextlib.ExitStack()
        self._threads.enter_context(one_thread())

    def begin(self, setup: Setup) -> str:
        """Prepare for tasks; return the id of the machine. Ray has chosen the GPUs that this process sees.

        Raises:
            SetupError: if the memory of a share of a GPU cannot be limited.
        """
        if setup.gpus:
            limit_memory(setup.gpus)
        self._runner = TaskRunner(setup.make, setup.policy, None, setup.keep)
        return ray.get_runtime_context().get_node_id()

    def ping(self) -> None:
        """Answer, to show that the worker is alive."""

    def facts(self, of: Sequence[tuple[str, int | str]]) -> list[Facts]:
        """The declarations of these participants, each given with its seed.

        Raises:
            SetupError: if one cannot be made.
        """
        try:
            return [self._runner.facts(name, seed) for name, seed in of]
        except SetupError:
            raise
        except Exception as error:
            raise SetupError(f"{type(error).__name__}: {error}") from error

    def open(self, opening: Opening, model: npt.NDArray[np.uint8]) -> None:
        """Announce a round's tasks; ``model`` is a read-only view into the memory of Ray's store."""
        self._runner.open(opening, model.data)

    def work(self, tasks: Sequence[tuple[Key, TaskRequest]]) -> list[Outcome]:
        """Run tasks of open rounds, and add their updates to the rounds' sums."""
        return [self._runner.work(key, request) for key, request in tasks]

    def partial(self, key: SumKey, items: Sequence[FoldItem], *others: ArraySum) -> ArraySum:
        """This worker's sum of exactly these updates, plus the sums of other workers."""
        return merged([self._runner.partial(key, items), *others])

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """See ``TaskRunner.drop``."""
        self._runner.drop(run, through)

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``TaskRunner.forget``."""
        self._runner.forget(run, through, keep)

    def close(self) -> None:
        """Close every participant."""
        self._runner.close()
        self._threads.close()
