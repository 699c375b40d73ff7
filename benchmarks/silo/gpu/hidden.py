"""The row of an exchange beside training: how much of its time passes while steps go on.

The exchange is that of a silo with ``overlap_steps`` (see ``atoll.datacenter.federation.silo``): the update is encoded
on the device and copied to the host before the next step, and sent by a thread while steps go on. It travels over gRPC
to a process of this machine, no faster than a link between two sites. What steps wait for, the encoding included, is
not hidden.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc

from atoll.client.silo import Shard, Upload
from atoll.datacenter.federation.lane import Lane
from atoll.datacenter.train.trainer import Trainer
from atoll.wire.chunks import UploadKey
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from benchmarks.figures import Figure
from benchmarks.silo.gpu.encoding import ENCODING, Update, update_of
from benchmarks.silo.gpu.sizes import Size
from benchmarks.silo.gpu.speed import one_rank, seconds_of, trained
from benchmarks.starting import piped

COMMAND = "python -m benchmarks.silo gpu"
HIDDEN = 95.0
LINK_BYTES_PER_S = 125e6
_RECEIVER = [sys.executable, "-m", "benchmarks.baseline_peer", "serve", "1", "1"]
_CONNECT_S = 60.0
_REPEATS = 2
_KEY = UploadKey("hidden", 1, 1, "update")

Send = Callable[[Iterator[bytes]], bytes]
"""Sends messages to the receiver; returns how many bytes arrived, as digits."""


@dataclass(frozen=True)
class Exchange:
    """An update that is sent, alone and beside steps.

    Attributes:
        trainer: makes the steps.
        update: update of its weights.
        lane: copies between host and device.
        send: sends to the receiver.
        thread: sends beside steps.
    """

    trainer: Trainer
    update: Update
    lane: Lane
    send: Send
    thread: ThreadPoolExecutor

    def encode(self) -> Upload:
        """Encode the update into host memory."""
        difference = self.update.in_lane(self.lane)
        return Upload(_KEY, Shard(difference.ranges, difference), ENCODING, DEFAULT_CHUNK_BYTES)

    def alone(self) -> None:
        """Encode and send, without steps."""
        sent(self.encode(), self.send)

    def steps(self, count: int) -> None:
        """Make steps, without an exchange."""
        for _ in range(count):
            self.trainer.queue()
        self.trainer.settle()

    def beside(self, count: int) -> None:
        """Encode, then send while steps are made; wait for both."""
        sending = self.thread.submit(sent, self.encode(), self.send)
        self.steps(count)
        sending.result()


def sent(upload: Upload, send: Send) -> None:
    """Send an upload at the speed of the link.

    Raises:
        RuntimeError: if not all of it arrives.
    """
    began = time.perf_counter()

    def until_passed() -> None:
        time.sleep(max(0.0, began + upload.sent_bytes / LINK_BYTES_PER_S - time.perf_counter()))

    arrived = int(send(upload.frames(until_passed, lambda: None)))
    if upload.error is not None or arrived < upload.total_bytes:
        raise RuntimeError(f"{arrived} of {upload.total_bytes} bytes arrived") from upload.error


@contextmanager
def receiver() -> Iterator[Send]:
    """Start a process that counts what arrives."""
    with piped(_RECEIVER) as process:
        port = (process.stdout.readline() if process.stdout else "").strip()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(_CONNECT_S)
            send: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/T/Up")
            yield send


@contextmanager
def exchange_of(size: Size) -> Iterator[Exchange]:
    """Open an exchange of the model of the row of speed."""
    with ExitStack() as stack:
        folder, world = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(one_rank())
        trainer = stack.enter_context(trained(size.job(size.billion, size.batch), world))
        update = stack.enter_context(update_of(trainer, Path(folder)))
        send, thread = stack.enter_context(receiver()), stack.enter_context(ThreadPoolExecutor(1, "exchange"))
        yield Exchange(trainer, update, Lane(world.device), send, thread)


def hidden(size: Size) -> Iterator[Figure]:
    """Share of an int4 exchange's time that steps do not wait for."""
    with exchange_of(size) as exchange:
        device, one_by_one = exchange.trainer.world.device, replace(size, steps=1)
        elements, total_bytes = exchange.update.elements, exchange.encode().total_bytes
        once = seconds_of(
            {"step": partial(exchange.steps, 1), "exchange": exchange.alone}, one_by_one, device, repeats=1
        )
        count = 1 + math.ceil(once["exchange"] / once["step"])
        ways: dict[str, Callable[[], object]] = {
            "encoding": exchange.encode,
            "exchange": exchange.alone,
            "steps": partial(exchange.steps, count),
            "beside": partial(exchange.beside, count),
        }
        found = seconds_of(ways, one_by_one, device, repeats=_REPEATS)
    link = f"{8 * LINK_BYTES_PER_S / 1e9:g} Gbit/s"
    name = f"int4 exchange of {elements:,} parameters ({total_bytes / 1e6:,.4g} MB, {link}) hidden by {count} steps"
    yield Figure.at_least(name, hidden_percent(found), "%", HIDDEN, COMMAND)
    yield Figure.stated("  exchange alone", found["exchange"] * 1e3, "ms", COMMAND)
    yield Figure.stated("  of it encoding, which steps wait for", found["encoding"] * 1e3, "ms", COMMAND)


def hidden_percent(seconds: dict[str, float]) -> float:
    """Return how much of an exchange alone is not added to the steps that it runs beside."""
    return 100 * (1 - (seconds["beside"] - seconds["steps"]) / seconds["exchange"])
