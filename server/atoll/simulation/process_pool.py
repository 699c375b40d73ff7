"""Worker processes: tasks are pushed to them, longest first, and each hands over one partial sum a round."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.server.errors import NotFoundError, ServerError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.ingest.node_pool import FileNode, Node
from atoll.simulation.errors import SetupError, WorkerError
from atoll.simulation.frames import LENGTH, Message, framed, opening_to, outcome_from, request_to, sum_to
from atoll.simulation.inline import InlineExecutor
from atoll.simulation.task_runner import Facts, Opening, Outcome, TaskRequest, TaskRunner
from atoll.simulation.virtual_time import VirtualLoop
from atoll.simulation.worker_pool import Key
from atoll.simulation.worker_process import forked

MOST_WORKERS = 256
DEEPEST = 32
"""Tasks that one worker has in hand, so that it need not wait for the next."""
_FACTS = 256


@dataclass
class _Task:
    """A task that is waiting or in work."""

    key: Key
    request: TaskRequest
    predicted_s: float
    done: asyncio.Future[tuple[str, Outcome]]


class _Link:
    """The way to one worker. Answers are awaited with the loop's time held."""

    def __init__(self, name: str, pid: int, connection: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.in_hand = 0
        self.participants: set[str] = set()
        self._connection = connection
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._lost: WorkerError | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Begin to read the worker's answers."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=1 << 26)
        self._reader = asyncio.create_task(self._read(reader), name=self.name)

    def tell(self, do: str, message: Message) -> None:
        """Send what is not answered."""
        if self._writer is not None:
            self._writer.write(framed({"do": do, **message}))

    def ask(self, do: str, message: Message) -> asyncio.Future[Any]:
        """Send what is answered; the future has the answer, or ``WorkerError`` if the worker has ended."""
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        self._awaited[self._number] = future
        self.tell(do, {"number": self._number, **message})
        return future

    async def close(self) -> None:
        """End the worker: it finishes its task and closes its participants."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._connection.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(json.loads(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._lost = WorkerError(f"{self.name} {_how_it_ended(self.pid)}")
            for future in self._awaited.values():
                if not future.done():
                    future.set_exception(self._lost)

    def _take(self, message: Message) -> None:
        number = message["number"]
        future = self._awaited.pop(number, None)
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(SetupError(f"{message['error']}\n{message['traceback']}"))
        else:
            future.set_result(message["found"])


class ProcessPool:
    """Forked worker processes; see ``WorkerPool``.

    Args:
        runner: is forked into every worker.
        workers: how many.
        folder: takes the partial sums on their way.

    Raises:
        SetupError: for an impossible number of workers.
    """

    def __init__(self, runner: TaskRunner, workers: int, folder: Path) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise SetupError(f"workers = {workers}: give 0, for this process, to {MOST_WORKERS}")
        self._links: list[_Link] = []
        connections: list[socket.socket] = []
        for number in range(workers):
            pid, connection = forked(runner, connections)
            connections.append(connection)
            self._links.append(_Link(f"worker-{number}", pid, connection))
        self._folder = folder
        self._waiting: deque[_Task] = deque()
        self._tasks: dict[tuple[Key, str], _Task] = {}
        self._took_s: dict[str, float] = {}
        self._pushing: set[asyncio.Task[None]] = set()
        self._open = False

    @property
    def nodes(self) -> Sequence[Node]:
        """See ``WorkerPool``."""
        executor = InlineExecutor()
        return [FileNode(link.name, _Calls(link), self._folder, executor) for link in self._links]

    async def facts(self, participants: Mapping[str, int | str]) -> dict[str, Facts]:
        """See ``WorkerPool``."""
        await self._opened()
        everyone, asked = list(participants.items()), []
        for place, start in enumerate(range(0, len(everyone), _FACTS)):
            link = self._links[place % len(self._links)]
            names = everyone[start : start + _FACTS]
            link.participants.update(name for name, _ in names)
            asked.append(link.ask("facts", {"of": names}))
        with _loop().held():
            answers = await asyncio.gather(*asked)
        found = [Facts(examples, can_evaluate) for answer in answers for examples, can_evaluate in answer]
        return {name: one for (name, _), one in zip(everyone, found, strict=True)}

    async def open(self, opening: Opening) -> None:
        """See ``WorkerPool``."""
        message = opening_to(opening)
        for link in self._links:
            link.tell("open", message)

    def expect(self, key: Key, requests: Sequence[TaskRequest]) -> None:
        """See ``WorkerPool``: the longest first, so that no worker is left with a long one at the end."""
        mean_s = sum(self._took_s.values()) / len(self._took_s) if self._took_s else 1.0
        tasks = [_Task(key, one, self._took_s.get(one.participant, mean_s), _future()) for one in requests]
        tasks.sort(key=lambda task: -task.predicted_s)
        for task in tasks:
            self._tasks[key, task.request.participant] = task
            self._waiting.append(task)
        self._feed()

    async def outcome(self, key: Key, request: TaskRequest) -> tuple[str, Outcome]:
        """See ``WorkerPool``."""
        if (key, request.participant) not in self._tasks:
            self.expect(key, [request])
        task = self._tasks.pop((key, request.participant))
        with _loop().held():
            return await task.done

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """See ``WorkerPool``; tasks of these rounds that no worker has begun are not begun any more."""
        self._waiting = deque(task for task in self._waiting if task.key[0] != run or task.key[1:] > through)
        self._tasks = {at: task for at, task in self._tasks.items() if at[0][0] != run or at[0][1:] > through}
        for link in self._links:
            link.tell("forget", {"run": run, "through": list(through), "keep": [list(one) for one in keep]})

    async def close(self) -> None:
        """See ``WorkerPool``."""
        for task in self._pushing:
            task.cancel()
        await asyncio.gather(*self._pushing, return_exceptions=True)
        for link in self._links:
            await link.close()
        for link in self._links:
            _reap(link.pid)

    async def _opened(self) -> None:
        if not self._open:
            self._open = True
            for link in self._links:
                await link.open()

    def _feed(self) -> None:
        """Push tasks until every worker has enough in hand."""
        while self._waiting:
            link = min(self._links, key=lambda one: one.in_hand)
            depth = max(2, min(DEEPEST, len(self._waiting) // (2 * len(self._links))))
            if link.in_hand >= depth:
                return
            task = self._next_for(link)
            link.in_hand += 1
            pushing = asyncio.create_task(self._push(link, task))
            self._pushing.add(pushing)
            pushing.add_done_callback(self._pushing.discard)

    def _next_for(self, link: _Link) -> _Task:
        """The longest task, of those near the front that the worker has the participant of, if there is one."""
        for place, task in enumerate(self._waiting):
            if place == 2 * len(self._links):
                break
            if task.request.participant in link.participants:
                del self._waiting[place]
                return task
        return self._waiting.popleft()

    async def _push(self, link: _Link, task: _Task) -> None:
        name = task.request.participant
        link.participants.add(name)
        try:
            answer = await link.ask("work", {"key": list(task.key), "request": request_to(task.request)})
            outcome = outcome_from(answer)
            self._took_s[name] = outcome.seconds
            if not task.done.done():
                task.done.set_result((link.name, outcome))
        except (WorkerError, SetupError) as error:
            if not task.done.done():
                task.done.set_exception(error)
                task.done.exception()  # the run ends by the first: others need not be looked at
        finally:
            link.in_hand -= 1
            self._feed()


@dataclass(frozen=True)
class _Calls:
    """A worker's sums, as the coordinator's pool asks for them; see ``node_pool.RemoteCalls``."""

    link: _Link = field(repr=False)

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        """An update is in the sum since it was made, or waits for ``write_partial``."""

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        """Have the worker write its sum."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _loop().held():
                await self.link.ask("partial", {**sum_to(key, items), "path": str(path)})
        except (WorkerError, SetupError) as error:
            raise NotFoundError("spool.missing", str(error)) from error

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        """Forget sums."""
        self.link.tell("drop", {"run": run, "through": [round_number, attempt]})

    async def drop_run(self, run: str) -> None:
        """Forget every sum of a run."""
        self.link.tell("drop", {"run": run, "through": [1 << 62, 0]})

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        """There are none."""


def _future() -> asyncio.Future[tuple[str, Outcome]]:
    return asyncio.get_running_loop().create_future()


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError(f"a simulation runs on a VirtualLoop, not on a {type(loop).__name__}")
    return loop


def _how_it_ended(pid: int) -> str:
    """In words how a worker whose socket is closed has ended, once it has."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return "has ended"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL); the machine may have run out of memory: lower workers, or keep"
    return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"


def _reap(pid: int) -> None:
    """Wait for a worker whose socket is closed."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
