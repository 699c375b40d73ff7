import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from atoll.server.errors import ConflictError, InvalidRequestError, LimitExceededError, StorageError
from atoll.server.ingest import upload_quota
from atoll.server.ingest.coordinator_api import Disposition, ReportReceipt
from atoll.server.ingest.receiver import Receiver, RejectedUpdateError
from atoll.server.ingest.segment import Segment
from atoll.server.ingest.spool import Spool
from atoll.wire.chunks import Chunk, ChunkHeader, header_of
from atoll.wire.encoding import Encoding, decode
from atoll.wire.errors import ChunkError
from tests.patience import WAIT_S
from tests.server.ingest.uploads import SIZE, chunk_of, chunks_of, grant, ref, values_of, write

VALUES = values_of(1)
CHUNKS = chunks_of(VALUES)


async def send(receiver: Receiver, chunks: list[Chunk]) -> None:
    try:
        for chunk in chunks:
            await receiver.add(chunk)
        await receiver.finish()
    finally:
        receiver.close()


async def test_chunks_are_stored_in_order(spool: Spool, executor: ThreadPoolExecutor) -> None:
    receiver = Receiver(spool, ref(), grant(), executor)
    await send(receiver, CHUNKS)
    assert (receiver.chunks, receiver.payload_bytes) == (10, 4000)
    records = spool.received(ref())
    assert [record.header for record in records] == [chunk.header for chunk in CHUNKS]
    assert records[0].max_abs == pytest.approx(float(np.abs(VALUES[:100]).max()))
    assert records[0].sum_squares == pytest.approx(float((VALUES[:100].astype(float) ** 2).sum()))


async def test_an_upload_without_chunks_leaves_nothing(spool: Spool, executor: ThreadPoolExecutor) -> None:
    await send(Receiver(spool, ref(), grant(), executor), [])
    assert not spool.folder(ref()).exists()


async def test_a_chunk_beyond_the_layout_is_refused(spool: Spool, executor: ThreadPoolExecutor) -> None:
    beyond = chunk_of(values_of(1, SIZE + 1), SIZE - 99, SIZE + 1)
    with pytest.raises(InvalidRequestError, match="elements 901 to 1000; this round asks for 0 to 999"):
        await send(Receiver(spool, ref(), grant(), executor), [*CHUNKS[:2], beyond])
    assert len(spool.received(ref())) == 2


async def test_chunks_outside_what_the_round_asks_for_are_refused(spool: Spool, executor: ThreadPoolExecutor) -> None:
    asked = grant(first=200, elements=300)
    for outside in (CHUNKS[1], chunk_of(VALUES, 150, 250), chunk_of(VALUES, 499, 501)):
        with pytest.raises(InvalidRequestError, match="this round asks for 200 to 499") as caught:
            await send(Receiver(spool, ref(), asked, executor), [outside])
        assert caught.value.detail.code == "upload.range"
    await send(Receiver(spool, ref(), asked, executor), CHUNKS[2:5])
    assert [record.header.range.offset for record in spool.received(ref())] == [200, 300, 400]


async def test_a_payload_that_does_not_match_its_digest_is_refused(spool: Spool, executor: ThreadPoolExecutor) -> None:
    wrong = Chunk(replace(CHUNKS[1].header, digest=bytes(32)), CHUNKS[1].payload, None)
    with pytest.raises(InvalidRequestError) as caught:
        await send(Receiver(spool, ref(), grant(), executor), [CHUNKS[0], wrong, CHUNKS[2]])
    assert caught.value.detail.code == "upload.digest"
    assert [record.header for record in spool.received(ref())] == [CHUNKS[0].header]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (np.nan, "update.not_finite"),
        (np.inf, "update.not_finite"),
        (-np.inf, "update.not_finite"),
        (32.01, "update.out_of_range"),
        (-1e30, "update.out_of_range"),
    ],
)
async def test_a_value_that_cannot_be_summed_rejects_the_update(
    spool: Spool, executor: ThreadPoolExecutor, value: float, code: str
) -> None:
    bad = VALUES.copy()
    bad[555] = value
    with pytest.raises(RejectedUpdateError, match="element 500") as caught:
        await send(Receiver(spool, ref(), grant(), executor), chunks_of(bad))
    assert caught.value.detail.code == code
    assert len(spool.received(ref())) == 5


async def test_the_largest_admissible_value_is_taken(spool: Spool, executor: ThreadPoolExecutor) -> None:
    edge = VALUES.copy()
    edge[0], edge[1] = 32.0, -32.0
    await send(Receiver(spool, ref(), grant(), executor), chunks_of(edge))
    assert len(spool.received(ref())) == 10


QUANTISED = pytest.mark.parametrize("encoding", [Encoding.INT8_BLOCK, Encoding.INT4_BLOCK])


@QUANTISED
async def test_quantised_chunks_are_measured_as_they_will_be_decoded(
    spool: Spool, executor: ThreadPoolExecutor, encoding: Encoding
) -> None:
    chunks = [chunk_of(VALUES, start, min(start + 256, SIZE), encoding) for start in range(0, SIZE, 256)]
    receiver = Receiver(spool, ref(), grant(), executor)
    await send(receiver, chunks)
    assert receiver.payload_bytes == 4 * 8 + (SIZE if encoding is Encoding.INT8_BLOCK else SIZE // 2)
    for record, chunk in zip(spool.received(ref()), chunks, strict=True):
        values = decode(chunk.payload, encoding, chunk.header.range.size).astype(np.float64)
        assert record.max_abs == np.abs(values).max()
        assert record.sum_squares == pytest.approx(float((values**2).sum()), rel=1e-12)


@QUANTISED
async def test_a_quantised_chunk_at_the_bound_is_taken_and_one_beyond_is_not(
    spool: Spool, executor: ThreadPoolExecutor, encoding: Encoding
) -> None:
    edge = VALUES.copy()
    edge[0], edge[900] = 32.0, -32.0
    await send(Receiver(spool, ref(), grant(), executor), [chunk_of(edge, 0, SIZE, encoding)])
    with pytest.raises(RejectedUpdateError, match=r"magnitude 3[23]"):
        await send(Receiver(spool, ref(number=2), grant(), executor), [chunk_of(edge * 33 / 32, 0, SIZE, encoding)])


@QUANTISED
async def test_what_is_no_quantised_payload_is_refused_and_not_stored(
    spool: Spool, executor: ThreadPoolExecutor, encoding: Encoding
) -> None:
    good = chunk_of(VALUES, 0, SIZE, encoding)
    scale = np.float32(-1.0).tobytes()
    lowest = b"\x80" if encoding is Encoding.INT8_BLOCK else b"\x08"
    for payload, words in (
        (scale + bytes(good.payload[4:]), "scale of .* block 0 is -1.0"),
        (bytes(good.payload[:-1]) + lowest, "element is -(128|8)"),
    ):
        bad = Chunk(header_of(good.header.range, encoding, payload), memoryview(payload), None)
        with pytest.raises(ChunkError, match=words):
            await send(Receiver(spool, ref(), grant(), executor), [bad])
    assert not spool.received(ref())


class TestLimits:
    async def test_bytes_of_all_uploads_count(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        """Repeated chunks and abandoned uploads take disk like any other."""
        write(spool, ref(number=7), CHUNKS)
        write(spool, ref(), CHUNKS[:1])
        with pytest.raises(LimitExceededError) as caught:
            await send(Receiver(spool, ref(), grant(max_bytes=4000 + 400 + 800), executor), CHUNKS)
        assert caught.value.detail.code == "upload.bytes"
        assert spool.usage(ref()).payload_bytes == 4000 + 400 + 800

    async def test_streams_opened_together_share_one_grant(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        receivers = [Receiver(spool, ref(), grant(max_bytes=4000), executor) for _ in range(16)]
        sent = await asyncio.gather(*(send(receiver, CHUNKS) for receiver in receivers), return_exceptions=True)
        assert {type(each) for each in sent} == {LimitExceededError}
        assert spool.usage(ref()).payload_bytes <= 4000

    async def test_so_many_uploads_may_be_begun_and_gone_on_with(
        self, spool: Spool, executor: ThreadPoolExecutor
    ) -> None:
        """``[limits] uploads_per_round``: uploads stored by an earlier process count too."""
        for number in (7, 8):
            write(spool, ref(number=number), CHUNKS[:1])
        with pytest.raises(LimitExceededError) as caught:
            await send(Receiver(spool, ref(number=9), grant(max_uploads=2), executor), CHUNKS)
        assert caught.value.detail.code == "upload.unfinished"
        assert set(spool.usage(ref()).streams) == {ref(number=7).upload_id, ref(number=8).upload_id}
        await send(Receiver(spool, ref(number=8), grant(max_uploads=2), executor), CHUNKS[1:])

    async def test_uploads_begun_together_share_one_grant(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        receivers = [Receiver(spool, ref(number=at), grant(max_uploads=2), executor) for at in range(8)]
        sent = await asyncio.gather(*(send(each, CHUNKS[:1]) for each in receivers), return_exceptions=True)
        refused = [each.detail.code for each in sent if isinstance(each, LimitExceededError)]
        assert refused == ["upload.unfinished"] * 6
        assert len(spool.usage(ref()).streams) == 2

    async def test_streams_of_another_process_are_seen_after_so_many_bytes(
        self, spool: Spool, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upload_quota, "RECOUNT_BYTES", 800)
        one = Receiver(spool, ref(), grant(max_bytes=4000), executor)
        write(Spool(spool.root), ref(), CHUNKS[:8])
        with pytest.raises(LimitExceededError):
            await send(one, CHUNKS)
        assert spool.usage(ref()).payload_bytes == 4000

    async def test_what_was_not_stored_is_not_charged(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        """Refused chunks do not reduce the quota of other streams, and neither does a stream without chunks."""
        wrong = Chunk(replace(CHUNKS[0].header, digest=bytes(32)), CHUNKS[0].payload, None)
        beside = Receiver(spool, ref(number=99), grant(max_bytes=4000, max_uploads=2), executor)
        for number in range(5):
            with pytest.raises(InvalidRequestError):
                await send(Receiver(spool, ref(number=number), grant(max_bytes=4000, max_uploads=2), executor), [wrong])
        await send(beside, CHUNKS)
        assert spool.usage(ref()).payload_bytes == 4000

    async def test_a_write_that_never_began_is_not_charged(self, spool: Spool) -> None:
        """A stream that ends while its chunk waits for a thread leaves the quota to concurrent streams."""
        with ThreadPoolExecutor(1) as busy:
            beside = Receiver(spool, ref(), grant(max_bytes=4000, max_uploads=1), busy)
            ended = Receiver(spool, ref(number=2), grant(max_bytes=4000, max_uploads=1), busy)
            release = threading.Event()
            busy.submit(release.wait)
            await ended.add(CHUNKS[0])
            ended.close()
            release.set()
            await send(beside, CHUNKS)
        assert spool.usage(ref()).payload_bytes == 4000

    async def test_an_upload_goes_on_though_processes_together_began_too_many(
        self, spool: Spool, executor: ThreadPoolExecutor
    ) -> None:
        for number in (1, 2, 3):
            write(Spool(spool.root), ref(number=number), CHUNKS[:1])
        await send(Receiver(spool, ref(number=1), grant(max_uploads=2), executor), CHUNKS[1:])
        with pytest.raises(LimitExceededError) as caught:
            Receiver(spool, ref(number=4), grant(max_uploads=2), executor)
        assert caught.value.detail.code == "upload.unfinished"

    async def test_tiny_chunks_have_a_limit(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        with pytest.raises(LimitExceededError) as caught:
            await send(Receiver(spool, ref(), grant(max_chunks=51), executor), chunks_of(VALUES, 1))
        assert caught.value.detail.code == "upload.chunks"
        assert spool.usage(ref()).chunks == 51

    async def test_streams_without_end_have_a_limit(
        self, spool: Spool, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upload_quota, "MAX_SEGMENTS", 2)
        await send(Receiver(spool, ref(), grant(), executor), CHUNKS[:1])
        await send(Receiver(spool, ref(number=2), grant(), executor), CHUNKS[:1])
        with pytest.raises(LimitExceededError) as caught:
            Receiver(spool, ref(), grant(), executor)
        assert caught.value.detail.code == "upload.streams"

    def test_who_has_reported_may_not_upload(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        with pytest.raises(ConflictError) as caught:
            Receiver(spool, ref(), grant(receipt=ReportReceipt(Disposition.COUNTED, "d")), executor)
        assert caught.value.detail.code == "upload.reported"

    def test_a_round_without_updates_takes_no_upload(self, spool: Spool, executor: ThreadPoolExecutor) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            Receiver(spool, ref(), grant(max_bytes=0), executor)
        assert caught.value.detail.code == "upload.unwanted"


async def test_a_full_disk_is_reported_and_may_be_tried_again(
    spool: Spool, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(spool, ref(), grant(), executor)
    await receiver.add(CHUNKS[0])
    await receiver.finish()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="disk is full") as caught:
            await send(receiver, CHUNKS[1:2])
    assert caught.value.detail.retry_after_s is not None
    await send(Receiver(spool, ref(), grant(), executor), CHUNKS[1:])
    assert len(spool.received(ref())) == 10


class Gate:
    """Holds writes until it is opened, and counts waiting ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.waiting = 0
        append = Segment.append

        def held(segment: Segment, header: ChunkHeader, payload: memoryview, max_abs: float, squares: float) -> None:
            self.waiting += 1
            self.entered.set()
            assert self.open.wait(WAIT_S)
            self.waiting -= 1
            append(segment, header, payload, max_abs, squares)

        monkeypatch.setattr(Segment, "append", held)


async def test_at_most_two_chunks_are_held(
    spool: Spool, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    receiver = Receiver(spool, ref(), grant(), executor)
    await receiver.add(CHUNKS[0])
    assert await asyncio.to_thread(gate.entered.wait, WAIT_S)
    second = asyncio.create_task(receiver.add(CHUNKS[1]))
    done, _ = await asyncio.wait({second}, timeout=0.05)
    assert not done
    assert (receiver.chunks, gate.waiting) == (1, 1)
    gate.open.set()
    await asyncio.wait_for(second, WAIT_S)
    await receiver.finish()
    receiver.close()
    assert len(spool.received(ref())) == 2


async def test_files_stay_open_until_the_write_under_way_has_ended(
    spool: Spool, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream is cancelled during a write of its chunk: a closed descriptor might by then be another file's."""
    gate = Gate(monkeypatch)
    closed = threading.Event()
    close = Segment.close

    def note(segment: Segment) -> None:
        close(segment)
        closed.set()

    monkeypatch.setattr(Segment, "close", note)
    receiver = Receiver(spool, ref(), grant(), executor)
    sending = asyncio.create_task(send(receiver, CHUNKS))
    assert await asyncio.to_thread(gate.entered.wait, WAIT_S)
    sending.cancel()
    await asyncio.wait({sending}, timeout=WAIT_S)
    assert sending.cancelled()
    assert not closed.is_set()
    gate.open.set()
    assert await asyncio.to_thread(closed.wait, WAIT_S)
    assert [record.header for record in spool.received(ref())] == [CHUNKS[0].header]
