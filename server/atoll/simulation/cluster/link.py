"""The simulation's side of a worker: calls of its actor, awaited on the simulation's event loop."""

from __future__ import annotations

from typing import Any, Literal, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from atoll.simulation.cluster.actor import Setup, Worker
from atoll.simulation.cluster.ray_workers import RayWorkers
from atoll.simulation.errors import SetupError, WorkerError

Method = Literal["begin", "ping", "node", "facts", "open", "work", "partial", "drop", "forget", "close"]
Ref = ray.ObjectRef[Any]


class LostError(Exception):
    """The worker, or its answer, is lost; the message says how."""


class Link:
    """The connection to one worker.

    Attributes:
        in_hand: batches that it has not answered yet.
        participants: participants whose objects it has.
        node: the id of the machine, once it has begun.
    """

    def __init__(self, name: str, setup: ray.ObjectRef[Setup], workers: RayWorkers) -> None:
        self.name = name
        self.in_hand = 0
        self.participants: set[str] = set()
        self.node = ""
        made = ray.remote(Worker).options(
            num_cpus=workers.cpus, num_gpus=workers.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._actor = cast("ActorHandle[Worker]", made.remote())
        self.begun = self.call("begin", setup)

    def call(self, method: Method, *arguments: Any) -> Ref:
        """Call a method of the worker; it runs after earlier calls."""
        return cast("Ref", getattr(self._actor, method).remote(*arguments))

    async def ask(self, method: Method, *arguments: Any) -> Any:
        """Call a method, and wait for its answer. Raises as ``answer``."""
        return await answer(self.call(method, *arguments))

    def end(self) -> None:
        """End the worker's process at once."""
        ray.kill(self._actor)


async def answer(of: Ref) -> Any:
    """The answer to a call.

    Raises:
        LostError: if the worker is gone.
        SetupError: if the worker's settings or the participants' factory fail.
        WorkerError: for any other error raised in the worker.
    """
    try:
        return await of
    except RayError as error:
        raise _meaning(error) from error


def answer_now(of: Ref) -> Any:
    """The answer to a completed call. Raises as ``answer``."""
    try:
        return ray.get(of)
    except RayError as error:
        raise _meaning(error) from error


def _meaning(error: RayError) -> LostError | SetupError | WorkerError:
    """Convert a call's error to the simulation's errors."""
    if not isinstance(error, RayTaskError):
        return LostError(_why(error))
    cause = error.cause
    if isinstance(cause, RayError):
        return LostError(_why(cause))
    kind = SetupError if isinstance(cause, SetupError) else WorkerError
    return kind(f"{cause}\n{error}")


def _why(error: RayError) -> str:
    """The line of Ray's message that says why a worker has ended, without Ray's advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    return said.partition(" Some common causes include")[0] or type(error).__name__
