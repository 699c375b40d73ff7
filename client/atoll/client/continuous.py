"""A participant that trains continuously, whether or not it is selected, and reports its progress when asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.client.errors import PublicError, trainer_error
from atoll.client.model import as_float32
from atoll.client.participant import Participant
from atoll.client.settings import Settings
from atoll.client.update import Update
from atoll.wire.layout import Dtype

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.task import Task

Weights = dict[str, npt.NDArray[Any]]
JOIN_S = 5.0


class Continuous(Participant):
    """Write ``step``; a thread calls it repeatedly, starting from the newest global model that was received.

    When a round asks for a report, the progress since the last report is moved to that round's global model (local +=
    global now - global then), and at least ``min_examples`` are trained on. The weight of the update is the number of
    examples since the last report, at most ``task.max_weight``. Training then continues from the round's global model.
    A report is ``partial`` if it covers fewer than ``examples``. If a round asks for some elements only
    (``task.ranges``), tensors without such elements keep their progress for a later round.

    Training starts with the first invitation, which brings the model. Memory: two writable copies of the model (float32
    for narrower types), one of them only during an upload, and the mapped global model.
    """

    min_examples: int = 1
    idle_s: float = 1.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._nudge = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._base: Model | None = None
        self._local: Weights = {}
        self._settings = Settings()
        self._since = 0
        self._unsent: frozenset[str] = frozenset()

    def step(self, weights: Weights, settings: Settings) -> int:
        """Change ``weights`` in place by one small step; return the number of examples used.

        0 means that there is no data now; the next call follows after ``idle_s``. ``settings`` are those of the newest
        task. Keep steps short: a report waits for the current step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step method")

    def fit(self, model: Model, task: Task) -> Update:
        """Return the progress since the last report; see the class.

        Raises:
            TrainerError: if ``step`` failed; a ``PublicError`` is raised again as it is.
        """

        def enough() -> bool:
            return self._since >= self.min_examples or self._error is not None or task.should_stop

        with self._between_steps(), task.control.on_stop(self._nudge.set):
            self._adopt(model, task)
            self._start()
            self._changed.wait_for(enough, timeout=max(0.0, task.remaining_s))
            if self._error is not None:
                if isinstance(self._error, PublicError):
                    raise self._error
                raise trainer_error("step", self._error) from self._error
            return self._take(model, task)

    def close(self) -> None:
        """End the thread; waits at most ``JOIN_S`` for the current step."""
        self._closing.set()
        self._nudge.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _adopt(self, model: Model, task: Task) -> None:
        """Make ``model`` the base, and move the progress since the last report to it."""
        self._settings = task.settings
        if self._base is None or self._base.layout != model.layout:
            self._local, self._since, self._unsent = {}, 0, frozenset()
        moved = self._local.keys() if self._since else self._unsent
        for name in model:
            if self._base is None or name not in moved or task.is_frozen(name):
                self._local[name] = working_copy(model, name)
                continue
            local = self._local[name]
            np.add(local, _wide(model, name), out=local)
            np.subtract(local, _wide(self._base, name), out=local)
        self._base = model

    def _take(self, model: Model, task: Task) -> Update:
        taken, weight = self._local, min(self._since, task.max_weight)
        self._unsent = _not_asked_for(model, task)
        self._local = {
            name: taken[name].copy() if name in self._unsent else working_copy(model, name) for name in model
        }
        self._since = 0
        return Update(weights=taken, weight=weight, partial=weight < self.examples)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, name="atoll-continuous", daemon=True)
            self._thread.start()

    def _train(self) -> None:
        while not self._closing.is_set():
            with self._between_steps():
                used = self._one_step()
                self._changed.notify_all()
            if self._error is not None:
                return
            if not used:
                self._nudge.wait(self.idle_s)
                self._nudge.clear()

    def _one_step(self) -> int:
        try:
            used = self.step(self._local, self._settings)
        except Exception as error:  # noqa: BLE001  # raised again by the next fit
            self._error = error
            return 0
        self._since += used
        return used

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Lock the weights. The second lock keeps the order of arrival, so that steps do not starve a report."""
        with self._turn:
            self._changed.acquire()
        try:
            yield
        finally:
            self._changed.release()


def _not_asked_for(model: Model, task: Task) -> frozenset[str]:
    """The tensors that this task's update leaves out, except tensors that every update leaves out."""
    if not task.ranges:
        return frozenset()
    spans = model.layout.spans
    return frozenset(
        span.spec.name
        for span in spans
        if not task.is_frozen(span.spec.name) and not any(one.touches(span.start, span.stop) for one in task.ranges)
    )


def working_copy(model: Model, name: str) -> npt.NDArray[Any]:
    """A writable copy of one tensor: float64 stays float64, other types become float32."""
    return np.array(_wide(model, name))


def _wide(model: Model, name: str) -> npt.NDArray[Any]:
    dtype = model.spec(name).dtype
    return model[name] if dtype is Dtype.FLOAT64 else as_float32(model[name], dtype)
