"""The exercise of the conformance scenarios, for our own client: add 1 to every weight."""

import numpy as np

from atoll.client import Model, Participant, Task, Update


class PlusOne(Participant):
    """Adds 1 to every weight, after waiting for the setting ``seconds`` or until it is stopped."""

    examples = 7

    def fit(self, model: Model, task: Task) -> Update:
        task.stop_event.wait(task.settings.number("seconds", 0.0))
        return Update(weights={name: view + np.float32(1) for name, view in model.items()}, weight=self.examples)
