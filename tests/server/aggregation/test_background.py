from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from atoll.server.aggregation.background import MAX_PENDING, BackgroundWriter
from tests.patience import WAIT_S

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Sink:
    """Collects its input once its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written = bytearray()

    def write(self, piece: Buffer, /) -> None:
        assert self.gate.wait(timeout=WAIT_S)
        self.written += piece


class Full:
    """A disk without room."""

    def write(self, piece: Buffer, /) -> None:
        del piece
        raise OSError(28, os.strerror(28))


def test_blocks_arrive_in_order_at_every_sink() -> None:
    sinks = {"a": Sink(), "b": Sink()}
    for sink in sinks.values():
        sink.gate.set()
    blocks = [np.random.default_rng(1).standard_normal(size, dtype=np.float32) for size in (1, 70_000, 300_000, 5)]
    with BackgroundWriter(sinks) as writer:
        for block in blocks:
            writer.append({"a": block, "b": block.astype(np.float16)})
        writer.finish()
    expected = np.concatenate(blocks)
    assert sinks["a"].written == expected.tobytes()
    assert sinks["b"].written == expected.astype(np.float16).tobytes()


def test_no_more_blocks_are_held_than_stated() -> None:
    sink, handed, done = Sink(), list[int](), threading.Event()
    with BackgroundWriter({"a": sink}) as writer:

        def produce() -> None:
            for index in range(MAX_PENDING + 3):
                writer.append({"a": np.full(10, index, np.uint8)})
                handed.append(index)
            done.set()

        producer = threading.Thread(target=produce)
        producer.start()
        assert not done.wait(timeout=0.2)
        assert len(handed) == MAX_PENDING
        sink.gate.set()
        producer.join(timeout=WAIT_S)
        writer.finish()
    assert list(sink.written[::10]) == list(range(MAX_PENDING + 3))


@pytest.mark.parametrize("more", [0, MAX_PENDING + 1])
def test_a_full_disk_is_reported(more: int) -> None:
    def write_all() -> None:
        with BackgroundWriter({"a": Full()}) as writer:
            for _ in range(1 + more):
                writer.append({"a": np.zeros(10)})
            writer.finish()

    with pytest.raises(OSError, match="No space left"):
        write_all()


def test_leaving_early_drops_what_is_pending() -> None:
    sink = Sink()

    def fail() -> None:
        with BackgroundWriter({"a": sink}) as writer:
            for index in range(MAX_PENDING):
                writer.append({"a": np.full(10, index, np.uint8)})
            threading.Timer(0.1, sink.gate.set).start()
            raise KeyError("in the release")

    with pytest.raises(KeyError):
        fail()
    assert len(sink.written) <= 10 * (MAX_PENDING - 1)
