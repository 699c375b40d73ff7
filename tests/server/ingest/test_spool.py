import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.errors import CorruptDataError, InvalidRequestError, NotFoundError, StorageError
from atoll.server.ingest import committed as committed_uploads
from atoll.server.ingest import spool as spool_module
from atoll.server.ingest import upload_quota, verified
from atoll.server.ingest.commit import commit_upload
from atoll.server.ingest.records import RECORD_BYTES, Extent, read_extent
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import Chunk, ElementRange, UploadKey
from atoll.wire.encoding import Encoding, decode
from tests.server.ingest.uploads import (
    ALICE,
    BOB,
    RUN,
    SIZE,
    chunk_of,
    chunks_of,
    committed,
    digest_of,
    flip,
    ref,
    upload_id,
    values_of,
    write,
)

VALUES = values_of(1)
CHUNKS = chunks_of(VALUES)


def received(spool: Spool, upload: UploadRef) -> list[ElementRange]:
    return [record.header.range for record in spool.received(upload)]


def ranges(chunks: Iterable[Chunk]) -> list[ElementRange]:
    return [chunk.header.range for chunk in chunks]


def read_back(spool: Spool, upload: UploadRef, digest: str) -> list[float]:
    out = np.zeros(SIZE, np.float32)
    with spool.committed(upload.run, upload.round, upload.attempt, upload.participant, digest) as found:
        for record in found.records:
            span = record.header.range
            out[span.offset : span.stop] = decode(found.payload(record), record.header.encoding, span.size)
    return out.tolist()


class TestNames:
    @pytest.mark.parametrize("bad", ["..", "../x", "a/b", "", "x" * 65, "A", "a\x00", ".hidden", "-a"])
    def test_what_cannot_name_a_folder_is_refused(self, bad: str) -> None:
        with pytest.raises(InvalidRequestError, match="cannot name"):
            UploadRef(bad, 0, 0, ALICE, upload_id(1))
        with pytest.raises(InvalidRequestError, match="cannot name"):
            UploadRef(RUN, 0, 0, bad, upload_id(1))

    @pytest.mark.parametrize("bad", ["../../../../etc", "", "g" * 32, "A" * 32, upload_id(1) + "0", upload_id(1)[:-1]])
    def test_an_upload_id_is_32_hex_digits(self, bad: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            UploadRef.of(UploadKey(RUN, 0, 0, bad), ALICE)
        assert caught.value.detail.code == "upload.id"

    def test_reading_checks_its_names_too(self, spool: Spool) -> None:
        with pytest.raises(InvalidRequestError), spool.committed("..", 0, 0, ALICE, "0" * 64):
            pass
        with pytest.raises(InvalidRequestError), spool.committed(RUN, 0, 0, ALICE, "../../secret"):
            pass
        with pytest.raises(InvalidRequestError):
            spool.drop_run("..")

    def test_only_the_owner_may_look(self, spool: Spool) -> None:
        assert spool.root.stat().st_mode & 0o777 == 0o700


class TestReceived:
    def test_nothing_is_received_of_an_unknown_upload(self, spool: Spool) -> None:
        assert spool.received(ref()) == []

    def test_two_streams_feed_one_upload(self, spool: Spool) -> None:
        one, other = spool.open_segment(ref()), spool.open_segment(ref())
        for place, chunk in enumerate(CHUNKS):
            (one, other)[place % 2].append(chunk.header, chunk.payload, 1.0, 2.0)
        one.close()
        other.close()
        assert received(spool, ref()) == ranges(CHUNKS)
        done = commit_upload(spool, ref(), SIZE, digest_of(CHUNKS))
        assert read_back(spool, ref(), done.digest) == VALUES.tolist()

    def test_a_chunk_that_came_twice_counts_once(self, spool: Spool) -> None:
        write(spool, ref(), CHUNKS[:6])
        write(spool, ref(), CHUNKS[4:])
        assert received(spool, ref()) == ranges(CHUNKS)

    def test_the_same_bytes_in_another_encoding_are_another_chunk(self, spool: Spool) -> None:
        """float16 and bfloat16 payloads may be the same bytes and mean different numbers."""
        zeros = np.zeros(SIZE, np.float32)
        write(spool, ref(), [chunk_of(zeros, 0, 10, encoding) for encoding in (Encoding.FLOAT16, Encoding.BFLOAT16)])
        assert len(spool.received(ref())) == 2

    def test_a_torn_index_loses_its_last_chunk_only(self, spool: Spool) -> None:
        index = write(spool, ref(), CHUNKS).with_suffix(".index")
        os.truncate(index, index.stat().st_size - 1)
        assert received(spool, ref()) == ranges(CHUNKS[:-1])

    def test_a_damaged_index_record_loses_its_chunk_only(self, spool: Spool) -> None:
        index = write(spool, ref(), CHUNKS).with_suffix(".index")
        flip(index, 2 * RECORD_BYTES + 20)
        assert received(spool, ref()) == ranges(CHUNKS[:2] + CHUNKS[3:])

    def test_a_truncated_data_file_loses_what_is_cut_off(self, spool: Spool) -> None:
        data = write(spool, ref(), CHUNKS)
        os.truncate(data, 250 * 4)
        assert received(spool, ref()) == ranges(CHUNKS[:2])

    def test_a_lost_data_file_loses_its_chunks(self, spool: Spool) -> None:
        write(spool, ref(), CHUNKS).unlink()
        assert received(spool, ref()) == []
        assert received(Spool(spool.root), ref()) == []

    def test_payloads_that_never_reached_the_disk_are_not_believed_after_a_restart(
        self, spool: Spool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """After a power failure an index may be ahead of its data, whose pages come back as zeros."""
        data = write(spool, ref(), CHUNKS)
        raw = bytearray(data.read_bytes())
        raw[400:800] = bytes(400)
        data.write_bytes(raw)
        restarted = Spool(spool.root)
        with caplog.at_level(logging.WARNING):
            assert received(restarted, ref()) == ranges(CHUNKS[:1] + CHUNKS[2:])
        assert "lacks 1 of its 10 payloads" in caplog.text
        write(restarted, ref(), CHUNKS[1:2])
        done = commit_upload(restarted, ref(), SIZE, digest_of(CHUNKS))
        assert read_back(restarted, ref(), done.digest) == VALUES.tolist()


class TestVerified:
    """Segments of another process are compared with their checksums once; asking again only costs a stat."""

    @pytest.fixture
    def compared(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Sizes of the compared payloads."""
        found: list[int] = []

        def note(view: memoryview) -> bytes:
            found.append(view.nbytes)
            return stored_checksum(view)

        monkeypatch.setattr(committed_uploads, "stored_checksum", note)
        return found

    def test_asking_again_reads_nothing(self, spool: Spool, compared: list[int]) -> None:
        data = write(Spool(spool.root), ref(), CHUNKS)
        flip(data, 450)
        for _ in range(3):
            assert received(spool, ref()) == ranges(CHUNKS[:1] + CHUNKS[2:])
        assert sum(compared) == 4000

    def test_a_segment_that_grew_is_read_from_where_it_ended(self, spool: Spool, compared: list[int]) -> None:
        segment = Spool(spool.root).open_segment(ref())
        for seen, chunk in enumerate(CHUNKS, 1):
            segment.append(chunk.header, chunk.payload, 1.0, 2.0)
            assert received(spool, ref()) == ranges(CHUNKS[:seen])
        segment.close()
        assert sum(compared) == 4000

    def test_a_file_that_was_cut_or_replaced_is_noticed(self, spool: Spool) -> None:
        data = write(Spool(spool.root), ref(), CHUNKS)
        assert len(received(spool, ref())) == 10
        os.truncate(data, 400)
        assert received(spool, ref()) == ranges(CHUNKS[:1])
        data.rename(data.with_suffix(".old"))
        data.write_bytes(bytes(4000))
        assert received(spool, ref()) == []

    def test_only_so_many_segments_are_remembered(
        self, spool: Spool, compared: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verified, "MOST_SEGMENTS", 1)
        for number in (1, 2):
            write(Spool(spool.root), ref(number=number), CHUNKS)
            received(spool, ref(number=number))
        received(spool, ref(number=1))
        assert sum(compared) == 3 * 4000


class TestUsage:
    def test_everything_of_the_participant_counts_whatever_the_upload(self, spool: Spool) -> None:
        write(spool, ref(), CHUNKS)
        write(spool, ref(), CHUNKS[:1])
        write(spool, ref(number=2), CHUNKS[:3])
        write(spool, ref(BOB), CHUNKS)
        usage = spool.usage(ref(number=3))
        assert (usage.payload_bytes, usage.chunks, usage.streams.total()) == (14 * 400, 14, 3)

    def test_each_segment_is_read_once_however_many_streams_begin(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a participant opens thousands of streams, its segments must not all be read for each of them."""
        read: list[Path] = []

        def counted(path: Path) -> Extent:
            read.append(path)
            return read_extent(path)

        monkeypatch.setattr(upload_quota, "read_extent", counted)
        monkeypatch.setattr(spool_module, "read_extent", counted)
        elsewhere = Spool(spool.root)
        for number in range(40):
            spool.quota(ref(number=1))
            write(elsewhere if number % 2 else spool, ref(number=1), CHUNKS[:1])
        spool.quota(ref(number=1))
        assert len(read) == 20
        assert all(path.name.startswith(elsewhere._prefix) for path in read)

    def test_nothing_is_used_at_first(self, spool: Spool) -> None:
        assert spool.usage(ref()).payload_bytes == 0


class TestCommitted:
    def test_what_was_committed_is_read_back(self, spool: Spool) -> None:
        done = committed(spool, ref(), CHUNKS)
        assert read_back(Spool(spool.root), ref(), done.digest) == VALUES.tolist()
        assert spool.flaw(RUN, 0, 0, ALICE, done.digest) == ""

    def test_committing_again_changes_nothing(self, spool: Spool) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        assert commit_upload(spool, ref(), SIZE, digest).digest == digest
        assert read_back(spool, ref(), digest) == VALUES.tolist()

    def test_an_upload_that_was_not_committed_is_not_there(self, spool: Spool) -> None:
        write(spool, ref(), CHUNKS)
        with pytest.raises(NotFoundError), spool.committed(RUN, 0, 0, ALICE, digest_of(CHUNKS)):
            pass
        assert "the stored update is gone" in spool.flaw(RUN, 0, 0, ALICE, digest_of(CHUNKS))

    def test_a_flipped_payload_bit_never_comes_out(self, spool: Spool) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        flip(next(spool.folder(ref()).glob("*.data")), 1234)
        with pytest.raises(CorruptDataError, match="byte 1200"):
            read_back(spool, ref(), digest)
        assert "byte 1200" in spool.flaw(RUN, 0, 0, ALICE, digest)

    def test_a_truncated_data_file_never_comes_out(self, spool: Spool) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        os.truncate(next(spool.folder(ref()).glob("*.data")), 3999)
        with pytest.raises(CorruptDataError, match="byte 3600"):
            read_back(spool, ref(), digest)

    @pytest.mark.parametrize("left", [0, None])
    def test_a_lost_or_empty_data_file_is_corrupt(self, spool: Spool, left: int | None) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        data = next(spool.folder(ref()).glob("*.data"))
        data.unlink() if left is None else os.truncate(data, left)
        with pytest.raises(CorruptDataError, match="cannot be read"):
            read_back(spool, ref(), digest)

    @pytest.mark.parametrize("position", [0, 40, 60, 150, 300, -1])
    def test_a_changed_list_is_corrupt(self, spool: Spool, position: int) -> None:
        """Damage to upload id, segment names or records never yields other bytes."""
        digest = committed(spool, ref(), CHUNKS).digest
        path = spool.folder(ref()).parent / f"{digest}.committed"
        flip(path, position)
        with pytest.raises(CorruptDataError):
            read_back(spool, ref(), digest)

    @pytest.mark.parametrize("cut", [1, RECORD_BYTES + 16, 500])
    def test_a_truncated_list_is_corrupt(self, spool: Spool, cut: int) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        path = spool.folder(ref()).parent / f"{digest}.committed"
        os.truncate(path, path.stat().st_size - cut)
        with pytest.raises(CorruptDataError):
            read_back(spool, ref(), digest)

    def test_views_outlive_the_files(self, spool: Spool) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        with spool.committed(RUN, 0, 0, ALICE, digest) as found:
            views = [found.payload(record) for record in found.records]
        spool.drop_run(RUN)
        assert b"".join(views) == VALUES.tobytes()


@pytest.mark.parametrize("file", ["*.committed", "*/*.data"])
class TestOutage:
    """A disk that refuses or is missing does not mean that its updates are lost."""

    @pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
    def test_what_cannot_be_read_now_is_not_damaged(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch, file: str, number: int
    ) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        (refused,) = spool.folder(ref()).parent.glob(file)
        opened = Path.open

        def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
            if self == refused:
                raise OSError(number, os.strerror(number), str(self))
            return opened(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)
            with pytest.raises(StorageError, match=re.escape(os.strerror(number))) as raised:
                spool.flaw(RUN, 0, 0, ALICE, digest)
            assert str(spool.root) not in str(raised.value.detail)
        assert spool.flaw(RUN, 0, 0, ALICE, digest) == ""

    def test_a_disk_that_is_gone_has_lost_no_update(self, spool: Spool, tmp_path: Path, file: str) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        away = spool.root.rename(tmp_path / "away")
        with pytest.raises(StorageError, match="cannot be reached"):
            spool.flaw(RUN, 0, 0, ALICE, digest)
        away.rename(spool.root)
        next(spool.folder(ref()).parent.glob(file)).unlink()
        assert spool.flaw(RUN, 0, 0, ALICE, digest) != ""


class TestDropping:
    def test_uploads_up_to_a_round_go_but_for_the_kept(self, spool: Spool) -> None:
        kept = {at: committed(spool, ref(at=at), CHUNKS).digest for at in [(0, 0), (0, 1), (1, 0), (10, 0)]}
        bobs = committed(spool, ref(BOB, at=(0, 1)), CHUNKS).digest
        gone = spool.drop_through(RUN, (1, 0), {(0, 1, BOB)})
        assert gone == [(0, 0), (1, 0)]
        assert spool.flaw(RUN, 0, 1, BOB, bobs) == ""
        assert spool.flaw(RUN, 10, 0, ALICE, kept[10, 0]) == ""
        for at in [(0, 0), (0, 1), (1, 0)]:
            assert spool.flaw(RUN, *at, ALICE, kept[at]) != ""
        assert spool.drop_through(RUN, (1, 0), ()) == [(0, 1)]

    def test_an_unknown_run_has_nothing_to_drop(self, spool: Spool) -> None:
        assert spool.drop_through(RUN, (5, 0), ()) == []
        spool.drop_run(RUN)

    def test_what_cannot_be_removed_is_told(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        committed(spool, ref(), CHUNKS)

        def refuse(path: Path, *, ignore_errors: bool) -> None:
            del path, ignore_errors

        monkeypatch.setattr(shutil, "rmtree", refuse)
        with caplog.at_level(logging.WARNING):
            spool.drop_run(RUN)
        assert "could not be removed" in caplog.text

    def test_runs_are_listed_for_the_sweep(self, spool: Spool) -> None:
        write(spool, ref(), CHUNKS[:1])
        write(spool, ref(run="rbbbbbbbbbbbb"), CHUNKS[:1])
        assert spool.runs() == [RUN, "rbbbbbbbbbbbb"]
        spool.drop_run(RUN)
        assert spool.runs() == ["rbbbbbbbbbbbb"]


LARGE = 1 << 18
"""Elements whose payload is worth keeping the file for."""


class TestRecycling:
    """Files of a dropped round are reused by later uploads; only records and digests decide which bytes are read."""

    def test_a_later_upload_is_written_over_an_earlier_one_of_which_nothing_stays(self, spool: Spool) -> None:
        before = write(spool, ref(), chunks_of(values_of(1, LARGE), LARGE))
        inode = before.stat().st_ino
        spool.drop_through(RUN, (0, 0), ())
        values = values_of(2, LARGE)
        segment = spool.open_segment(ref(BOB, at=(1, 0)), expected_bytes=4 * LARGE)
        for chunk in chunks_of(values, LARGE // 4)[:3]:
            segment.append(chunk.header, chunk.payload, 1.0, 2.0)
        segment.close()
        data = spool.folder(ref(BOB, at=(1, 0))) / f"{segment.name}.data"
        assert data.stat().st_ino == inode
        assert data.read_bytes() == values.tobytes()[: 3 * LARGE]
        usage = spool.usage(ref(BOB, at=(1, 0)))
        assert (usage.payload_bytes, usage.chunks, usage.streams.total()) == (3 * LARGE, 3, 1)
        for seen in (spool, Spool(spool.root)):
            assert received(seen, ref(BOB, at=(1, 0))) == ranges(chunks_of(values, LARGE // 4)[:3])

    def test_old_bytes_are_never_taken_for_new_ones(self, spool: Spool) -> None:
        """A power failure loses the new payload but not its record: the file still holds the old one, whole."""
        old, new = chunks_of(values_of(1, LARGE), LARGE), chunks_of(values_of(2, LARGE), LARGE)
        write(spool, ref(), old)
        spool.drop_through(RUN, (0, 0), ())
        segment = spool.open_segment(ref(BOB, at=(1, 0)), expected_bytes=4 * LARGE)
        segment.append(new[0].header, new[0].payload, 1.0, 2.0)
        segment.close()
        data = spool.folder(ref(BOB, at=(1, 0))) / f"{segment.name}.data"
        data.write_bytes(bytes(old[0].payload))
        assert Spool(spool.root).received(ref(BOB, at=(1, 0))) == []

    def test_a_stream_that_still_writes_keeps_its_file(self, spool: Spool) -> None:
        """Its round is over, and its remaining data must not end up in another participant's upload."""
        late = spool.open_segment(ref(), expected_bytes=4 * LARGE)
        chunk = chunks_of(values_of(1, LARGE), LARGE)[0]
        late.append(chunk.header, chunk.payload, 1.0, 2.0)
        spool.drop_through(RUN, (0, 0), ())
        values = values_of(2, LARGE)
        other = spool.open_segment(ref(BOB, at=(1, 0)), expected_bytes=4 * LARGE)
        kept = chunks_of(values, LARGE)[0]
        other.append(kept.header, kept.payload, 1.0, 2.0)
        late.append(chunk.header, chunk.payload, 1.0, 2.0)
        late.close()
        other.close()
        data = spool.folder(ref(BOB, at=(1, 0))) / f"{other.name}.data"
        assert data.read_bytes() == values.tobytes()

    def test_what_is_being_read_is_not_written_over(self, spool: Spool) -> None:
        """A mapped update stays readable and unchanged after its round has ended."""
        values = values_of(1, LARGE)
        digest = committed(spool, ref(), chunks_of(values, LARGE), LARGE).digest
        with spool.committed(RUN, 0, 0, ALICE, digest) as found:
            spool.drop_through(RUN, (0, 0), ())
            write(spool, ref(BOB, at=(1, 0)), chunks_of(values_of(2, LARGE), LARGE))
            assert b"".join(found.payload(record) for record in found.records) == values.tobytes()
        assert list((spool.root / ".free").glob("*")) == []

    def test_a_part_that_is_just_being_removed_is_gone(self, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
        digest = committed(spool, ref(), CHUNKS).digest
        data = next(spool.folder(ref()).glob("*.data"))
        flock = fcntl.flock

        def removed_meanwhile(descriptor: int, operation: int) -> None:
            data.unlink(missing_ok=True)
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
        with pytest.raises(CorruptDataError, match="cannot be read"):
            read_back(spool, ref(), digest)

    def test_a_file_that_goes_as_soon_as_it_is_made_is_not_written_to(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flock = fcntl.flock

        def removed_meanwhile(descriptor: int, operation: int) -> None:
            spool.drop_run(RUN)
            monkeypatch.undo()
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
        with pytest.raises(FileNotFoundError):
            spool.open_segment(ref())

    def test_free_files_are_no_run(self, spool: Spool) -> None:
        write(spool, ref(), chunks_of(values_of(1, LARGE), LARGE))
        spool.drop_run(RUN)
        assert len(list((spool.root / ".free").iterdir())) == 1
        assert spool.runs() == []
        spool.make_room()
        assert list((spool.root / ".free").iterdir()) == []
