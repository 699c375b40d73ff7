"""Orders of rank 0 to the other ranks, and agreement of all ranks on whether to continue.

All of this uses a store (a key-value server that the ranks already have), never collectives: a silo may wait for hours
between two rounds, and a rank whose transfer fails must not leave others in a collective. Keys of round number n begin
with ``n/``; they are deleted two rounds later.

=====================  =====================================================================================
key                    value
=====================  =====================================================================================
``order/n``            the order; empty: there are no more rounds
``n/<phase>/<rank>``   result of a phase on a rank: ``+`` and its bytes, or ``-`` and why it failed
``n/<phase>``          decision for all ranks: ``+``, or ``-`` and why not; or rank 0's message
``n/halt``             the last inner step
``n/ended``            the round has ended; not empty: it was abandoned, for this reason
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
from atoll.client.errors import text_for_server
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
    """All ranks abandon the round; the silo continues with the next one.

    ``public`` is the text that may be sent to the server.
    """

    def __init__(self, message: str, public: str = "") -> None:
        super().__init__(message)
        self.public = public


LOOK_S = 1.0
"""Seconds between checks of a waiting rank for a requested stop."""
_FILE_STORE_TIMEOUT = "Wait timeout"
_EMPTY = b""
_WELL = "-"


@dataclass(frozen=True, slots=True)
class Order:
    """One round, as every rank needs it.

    Attributes:
        number: number among this silo's rounds since the ranks were started, from 1.
        key: run, round and attempt.
        layout: layout of the model.
        blob: digest of the model.
        content: the model itself, if it is small enough to be sent along.
        encoding: encoding of the update.
        max_abs: largest magnitude of an element that the server accepts.
        ranges: requested elements; empty: all.
        remaining_s: seconds until the deadline when the order was given.
        upload_id: id of this silo's upload.
        address: address of transfers.
        chunk_bytes: chunk size of the upload.
        inner_steps: inner steps to run.
        clip_norm: largest norm of the update over all ranks; None: unlimited.
        traceparent: W3C trace context; empty without tracing.
        counted: id of the update whose rounding errors this one includes; empty: none.
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
    counted: str

    def encoded(self) -> bytes:
        """Encode as bytes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["key"] = [self.key.run, self.key.round, self.key.attempt]
        values["layout"] = b64encode(layout_to_proto(self.layout).SerializeToString()).decode()
        values["content"] = b64encode(self.content).decode()
        values["encoding"] = int(self.encoding)
        values["ranges"] = [[one.offset, one.block, one.stride, one.count] for one in self.ranges]
        return json.dumps(values).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Order:
        """Decode what ``encoded`` returned."""
        values: dict[str, Any] = json.loads(data)
        values["key"] = RoundKey(*values["key"])
        values["layout"] = layout_from_proto(tensors_pb2.Layout.FromString(b64decode(values["layout"])))
        values["content"] = b64decode(values["content"])
        values["encoding"] = encoding_of(values["encoding"])
        values["ranges"] = tuple(ElementRange(*one) for one in values["ranges"])
        return cls(**values)


class Orders:
    """One rank's end of the communication. Rank 0 gives orders and decides; the other ranks follow.

    Args:
        world: world of the ranks.
        store: PyTorch's store, visible to all ranks; cloned for each thread, as threads may not share a connection.
        stopping: returns whether a stop of this silo was requested.
    """

    def __init__(self, world: World, store: Any, stopping: Callable[[], bool]) -> None:
        self._world, self._store, self._stopping = world, store, stopping
        self._watching, self._ending = store.clone(), store.clone()
        self._taken = 0
        self._lock = threading.Lock()
        self._mine: dict[int, list[str]] = {}

    def give(self, order: Order | None) -> None:
        """Give the next round to the other ranks, or None if there are no more. For rank 0."""
        self._taken += 1
        self._set(self._taken, f"order/{self._taken}", _EMPTY if order is None else order.encoded())
        self._mine[self._taken].append(f"{self._taken}/ended")

    def take(self) -> Order | None:
        """Wait for the next round; None if there are no more. For the other ranks."""
        self._taken += 1
        key = f"order/{self._taken}"
        while not _arrives(self._store, key, LOOK_S):
            self._stopping()  # also publishes a request to stop, for rank 0
        data = self._store.get(key)
        return Order.decoded(data) if data else None

    def agree(self, order: Order, phase: str, outcome: bytes | Exception) -> list[bytes]:
        """Agree on whether a phase succeeded on every rank.

        Args:
            order: order of the round.
            phase: name of the phase; used once.
            outcome: result on this rank, or the error.

        Returns:
            On rank 0 the results of all ranks; on the others an empty list.

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
        """Send rank 0's message to all ranks; the argument of other ranks is ignored."""
        key = f"{order.number}/{phase}"
        if self._world.is_first:
            self._set(order.number, key, word.encode())
            return word
        self._wait(key)
        return str(self._store.get(key).decode())

    def halt(self, order: Order, step: int) -> None:
        """Make this step the last inner step. For rank 0, once in a round, before it enters the previous step.

        A rank asks about a step once it is queued, when only the previous step is known to be done. The previous step
        has collectives, which rank 0 entered after it had called this, so all ranks find the same answer.
        """
        self._set(order.number, f"{order.number}/halt", str(step).encode())

    def halted(self, order: Order, step: int) -> bool:
        """Return whether this step, just queued, is the last one; the same on every rank."""
        key = f"{order.number}/halt"
        return bool(self._store.check([key])) and int(self._store.get(key)) <= step

    def end(self, order: Order, reason: str = "") -> None:
        """End the round; a reason means that it was abandoned; the first call counts. For rank 0, from any thread."""
        with self._lock:
            self._ending.compare_set(f"{order.number}/ended", "", reason or _WELL)

    @contextmanager
    def abandoning(self, order: Order, control: TaskControl) -> Iterator[None]:
        """Within this context, abandon the round here when rank 0 does; only rank 0 hears from the server."""
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
        """Set a key, and delete the keys of two rounds before, which every rank has read by now."""
        self._store.set(key, value)
        self._mine.setdefault(number, []).append(key)
        for old in [one for one in self._mine if one < number - 1]:
            for gone in self._mine.pop(old):
                self._store.delete_key(gone)

    def _wait(self, key: str) -> None:
        """Wait for a key. If a rank is lost, the others end, so no rank waits here for ever."""
        while not _arrives(self._store, key, LOOK_S):
            self._stopping()


def open_store(name: str) -> Any:
    """Connect to the store of the ranks' rendezvous, with a prefix for these keys."""
    default: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # no public name for it
    return PrefixStore(name, default.clone())


def _passed(verdict: bytes, answers: list[bytes]) -> list[bytes]:
    if verdict[:1] != b"+":
        raise RoundError(*json.loads(verdict[1:]))
    return answers


def _failure(error: Exception) -> bytes:
    """Encode an error's text and its public part; a ``LayoutError`` names only jobs and layouts, so it is public."""
    public = str(error) if isinstance(error, LayoutError) else text_for_server(error, "type")
    return json.dumps([str(error), public]).encode()


def _of_rank(rank: int, failure: bytes) -> bytes:
    return json.dumps([f"rank {rank}: {text}" for text in json.loads(failure)]).encode()


def _arrives(store: Any, key: str, within_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=within_s))
    except dist.DistStoreError:
        return False
    except RuntimeError as error:  # a file store's timeout has no exception class
        if str(error) != _FILE_STORE_TIMEOUT:
            raise
        return False
    return True
