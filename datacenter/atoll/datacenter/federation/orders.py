"""What rank 0 tells the others of a round, and how all agree that they may go on.

Everything goes by a store (a key-value server that ranks have anyway), never by collectives: between two rounds a silo
may wait for hours, and a rank whose transfer fails must not leave others in a collective. Keys of round number n begin
with ``n/``; they are deleted two rounds later.

=====================  =====================================================================================
key                    what
=====================  =====================================================================================
``order/n``            the order; empty: there are no more rounds
``n/<phase>/<rank>``   how a phase went on a rank: ``+`` and what it gives, or ``-`` and why it failed
``n/<phase>``          whether all go on: ``+``, or ``-`` and why not; or rank 0's word
``n/halt``             the last inner step
``n/ended``            the round is over; not empty: it was abandoned, for this reason
=====================  =====================================================================================
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from atoll.client import RoundKey
from atoll.client.failures import told
from atoll.datacenter.errors import LayoutError
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import encoding_of
from atoll.wire.messages import layout_from_proto, layout_to_proto
from atoll.wire.v1 import tensors_pb2

if TYPE_CHECKING:
    from atoll.client.control import TaskControl
    from atoll.datacenter.mesh import World
    from atoll.wire.encoding import Encoding
    from atoll.wire.layout import Layout


class RoundError(Exception):
    """The round is given up by all ranks; the silo goes on with the next one.

    ``public`` is what the server may be told.
    """

    def __init__(self, message: str, public: str = "") -> None:
        super().__init__(message)
        self.public = public


LOOK_S = 1.0
"""How often a rank that waits looks whether it was asked to stop."""
_FILE_STORE_TIMEOUT = "Wait timeout"
_EMPTY = b""
_WELL = "-"


@dataclass(frozen=True, slots=True)
class Order:
    """One round, as every rank needs to know it.

    Attributes:
        number: of this silo's rounds, from 1; of this start of the ranks alone.
        key: run, round and attempt.
        layout: of the model.
        blob: the model's name.
        content: the model itself, if it is small enough to have come along.
        encoding: of the update.
        max_abs: largest magnitude of its elements that the server takes.
        ranges: elements that are wanted; empty: all.
        remaining_s: until the deadline, when the order was given.
        upload_id: of this silo's update.
        address: where transfers go.
        chunk_bytes: of an upload.
        inner_steps: steps to make.
        clip_norm: largest norm of the update, all ranks' parts together; None: any.
        traceparent: W3C trace context; empty without tracing.
    """

    number: int
    key: RoundKey
    layout: Layout
    blob: str
    content: bytes
    encoding: Encoding
    max_abs: float
    ranges: tuple[ElementRange, ...]
    remaining_s: float
    upload_id: str
    address: str
    chunk_bytes: int
    inner_steps: int
    clip_norm: float | None
    traceparent: str

    def encoded(self) -> bytes:
        """As bytes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["key"] = [self.key.run, self.key.round, self.key.attempt]
        values["layout"] = b64encode(layout_to_proto(self.layout).SerializeToString()).decode()
        values["content"] = b64encode(self.content).decode()
        values["encoding"] = int(self.encoding)
        values["ranges"] = [[one.offset, one.block, one.stride, one.count] for one in self.ranges]
        return json.dumps(values).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Order:
        """From ``encoded``."""
        values: dict[str, Any] = json.loads(data)
        values["key"] = RoundKey(*values["key"])
        values["layout"] = layout_from_proto(tensors_pb2.Layout.FromString(b64decode(values["layout"])))
        values["content"] = b64decode(values["content"])
        values["encoding"] = encoding_of(values["encoding"])
        values["ranges"] = tuple(ElementRange(*one) for one in values["ranges"])
        return cls(**values)


class Orders:
    """One rank's end. Rank 0 gives orders and decides; the others take them.

    Args:
        world: of the ranks.
        store: PyTorch's, that all ranks see; threads may not share a connection, so it is cloned for each.
        stopping: whether somebody has asked this silo to stop.
    """

    def __init__(self, world: World, store: Any, stopping: Callable[[], bool]) -> None:
        self._world, self._store, self._stopping = world, store, stopping
        self._watching, self._ending = store.clone(), store.clone()
        self._taken = 0
        self._lock = threading.Lock()
        self._mine: dict[int, list[str]] = {}

    def give(self, order: Order | None) -> None:
        """Rank 0: tell the others of the next round, or that there is none."""
        self._taken += 1
        self._set(self._taken, f"order/{self._taken}", _EMPTY if order is None else order.encoded())
        self._mine[self._taken].append(f"{self._taken}/ended")

    def take(self) -> Order | None:
        """The other ranks: wait for the next round; None if there are no more."""
        self._taken += 1
        key = f"order/{self._taken}"
        while not _arrives(self._store, key, LOOK_S):
            self._stopping()  # so that rank 0 hears of it too
        data = self._store.get(key)
        return Order.decoded(data) if data else None

    def agree(self, order: Order, phase: str, outcome: bytes | Exception) -> list[bytes]:
        """Whether a phase went well on every rank.

        Args:
            order: of the round.
            phase: a word, another one each time.
            outcome: what it gave on this rank, or why it failed.

        Returns:
            What it gave on every rank, on rank 0; nothing on the others.

        Raises:
            RoundError: on every rank, if it failed on one.
        """
        prefix = f"{order.number}/{phase}"
        said = b"-" + _failure(outcome) if isinstance(outcome, Exception) else b"+" + outcome
        self._set(order.number, f"{prefix}/{self._world.rank}", said)
        if not self._world.is_first:
            self._wait(prefix)
            return _passed(self._store.get(prefix), [])
        found = []
        for rank in range(self._world.size):
            self._wait(f"{prefix}/{rank}")
            found.append(self._store.get(f"{prefix}/{rank}"))
        problems = [_of_rank(rank, answer[1:]) for rank, answer in enumerate(found) if answer[:1] == b"-"]
        verdict = b"-" + problems[0] if problems else b"+"
        self._set(order.number, prefix, verdict)
        return _passed(verdict, [answer[1:] for answer in found])

    def say(self, order: Order, phase: str, word: str = "") -> str:
        """Rank 0's word, on all ranks; the others give none."""
        key = f"{order.number}/{phase}"
        if self._world.is_first:
            self._set(order.number, key, word.encode())
            return word
        self._wait(key)
        return str(self._store.get(key).decode())

    def halt(self, order: Order, step: int) -> None:
        """Rank 0: the inner steps end with this one, which none can leave before all have entered it."""
        self._set(order.number, f"{order.number}/halt", str(step).encode())

    def halted(self, order: Order, step: int) -> bool:
        """Whether this step, just made, was the last one: the same on every rank."""
        key = f"{order.number}/halt"
        return bool(self._store.check([key])) and int(self._store.get(key)) <= step

    def end(self, order: Order, reason: str = "") -> None:
        """Rank 0, any thread: the round is over. Given a reason, it was abandoned; the first word counts."""
        with self._lock:
            self._ending.compare_set(f"{order.number}/ended", "", reason or _WELL)

    @contextmanager
    def abandoning(self, order: Order, control: TaskControl) -> Iterator[None]:
        """While inside, the round is abandoned on this rank when it is on rank 0, where the server is heard."""
        left = threading.Event()

        def watch() -> None:
            key = f"{order.number}/ended"
            while not left.is_set():
                if _arrives(self._watching, key, LOOK_S):
                    if (reason := self._watching.get(key).decode()) != _WELL:
                        control.abandon(reason)
                    return

        def spread() -> None:
            self.end(order, control.reason or "abandoned")

        if self._world.is_first:
            with control.on_abandon(spread):
                yield
            return
        watcher = threading.Thread(target=watch, name="abandoning", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            left.set()
            watcher.join()

    def _set(self, number: int, key: str, value: bytes) -> None:
        """What was set for the round before the last goes: every rank has read it, or it could not be here."""
        self._store.set(key, value)
        self._mine.setdefault(number, []).append(key)
        for old in [one for one in self._mine if one < number - 1]:
            for gone in self._mine.pop(old):
                self._store.delete_key(gone)

    def _wait(self, key: str) -> None:
        """Until it is there. A rank that is lost ends the others, so that nobody waits for it here."""
        while not _arrives(self._store, key, LOOK_S):
            self._stopping()


def open_store(name: str) -> Any:
    """A connection to the store where the ranks have met, with keys of its own."""
    default: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # no public name for it
    return PrefixStore(name, default.clone())


def _passed(verdict: bytes, answers: list[bytes]) -> list[bytes]:
    if verdict[:1] != b"+":
        raise RoundError(*json.loads(verdict[1:]))
    return answers


def _failure(error: Exception) -> bytes:
    """The text of an error, and what of it the server may hear; a ``LayoutError`` speaks of jobs and layouts alone."""
    public = str(error) if isinstance(error, LayoutError) else told(error, "type")
    return json.dumps([str(error), public]).encode()


def _of_rank(rank: int, failure: bytes) -> bytes:
    return json.dumps([f"rank {rank}: {text}" for text in json.loads(failure)]).encode()


def _arrives(store: Any, key: str, within_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=within_s))
    except dist.DistStoreError:
        return False
    except RuntimeError as error:  # a file store's time-out has no class of its own
        if str(error) != _FILE_STORE_TIMEOUT:
            raise
        return False
    return True
