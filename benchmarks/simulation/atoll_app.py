"""A workload run by ``atoll.simulation``: ``python -m benchmarks.simulation.atoll_app WORKLOAD``."""

from __future__ import annotations

import torch

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import Cohort, Federation, Job
from benchmarks.simulation.workloads import CORES, Workload, load, main, train, weights_of


def play(workload: Workload) -> torch.nn.Module:
    """Train with as many workers as cores."""
    module = workload.module()

    class Trainer(Participant):
        """Trains the process's module on its own rows."""

        def __init__(self, number: int) -> None:
            self._x, self._y = workload.rows(number)
            self.examples = len(self._x)

        def fit(self, model: Model, task: Task) -> Update:
            """See ``Participant``."""
            del task
            load(module, list(model.values()))
            loss = train(module, self._x, self._y)
            return Update(weights=weights_of(module), weight=self.examples, metrics={"loss": loss})

    job = Job(rounds=workload.rounds, cohort=Cohort(size=workload.size, seed=1))
    federation = Federation(Trainer, population=workload.population)
    load(module, list(federation.run(job, initial=weights_of(module), workers=CORES).model.values()))
    return module


if __name__ == "__main__":
    main(play)
