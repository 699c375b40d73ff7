"""Every file format and framed text: valid ones pass, changed ones are harmless or refused by the reader's error."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.errors import ServerError
from atoll.server.ingest.committed import COMMITTED, open_committed
from atoll.server.ingest.records import RECORD_BYTES, read_index
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.upload_ref import UploadRef
from atoll.server.jobs import parse_job
from atoll.server.runs.journal import event_from_json
from atoll.wire.chunks import (
    ElementRange,
    UploadKey,
    frame_download,
    frame_upload,
    header_of,
    key_from_proto,
    parse_download,
    parse_upload,
)
from atoll.wire.encoding import Encoding
from atoll.wire.errors import WireError
from atoll.wire.messages import layout_to_proto, settings_from_proto
from atoll.wire.v1 import participation_pb2, tensors_pb2, transfer_pb2
from tests.fuzz.formats import LAYOUT, Format, all_formats, check_header, check_invitation, check_layout, check_manifest
from tests.fuzz.material import FUZZ, changed, messages, near
from tests.server.ingest.uploads import SIZE, chunks_of, committed, write


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    return all_formats(tmp_path_factory.mktemp("formats"))


NAMES = (
    "upload chunk",
    "download chunk",
    "int8 blocks",
    "int4 blocks",
    "chunk header",
    "layout",
    "manifest",
    "invitation",
    "error trailer",
    "job",
    "event",
    "request",
    "join token",
    "certificate",
    "identity",
    "operator.json",
    "server.toml",
    "policy",
    "ledger",
    "promises",
    "safetensors",
    "blob",
    "spool index",
    "backup",
)


def test_every_format_is_tried(formats: dict[str, Format]) -> None:
    assert set(NAMES) == set(formats)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_reads_or_refuses(formats: dict[str, Format], name: str) -> None:
    kind = formats[name]
    kind.read(kind.valid)

    @FUZZ
    @given(near(kind.valid))
    def every(data: bytes) -> None:
        kind.try_(data)

    every()


GARBAGE = b"\xff\x00what none of them can be\x07" * 20


@pytest.mark.parametrize("name", NAMES)
def test_garbage_is_refused_by_the_errors_that_are_documented(formats: dict[str, Format], name: str) -> None:
    kind = formats[name]
    if kind.refuses:
        with pytest.raises(kind.refuses):
            kind.read(GARBAGE)
    else:
        assert not kind.read(GARBAGE)
    kind.try_(GARBAGE)


@FUZZ
@given(st.integers(1, 200_000), st.sampled_from((b"[", b"{", b"[[", b'"', b"a = {b = ")))
def test_nesting_without_end(depth: int, opening: bytes) -> None:
    """Readers that recurse stop before the interpreter does."""
    text = opening * (depth // len(opening))
    for read in (parse_job, lambda data: event_from_json(data.decode())):
        with contextlib.suppress(ServerError, ValueError):
            read(b"a = " + text)


class TestStored:
    """Files of the server's own that a disk may change."""

    def test_records_of_a_segment(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        spool = Spool(tmp_path_factory.mktemp("spool"))
        upload = UploadRef("r", 0, 0, "p", "0" * 32)
        data = write(spool, upload, chunks_of(np.ones(500, np.float32)))
        index, whole = data.with_suffix(".index"), spool.received(upload)
        valid = index.read_bytes()

        @FUZZ
        @given(changed(valid))
        def every(raw: bytes) -> None:
            index.write_bytes(raw)
            found = read_index(index)
            assert len(found) <= len(raw) // RECORD_BYTES
            again = Spool(spool.root).received(upload)  # a process that did not write it looks at every payload
            assert {record.header for record in again} <= {record.header for record in whole}

        every()

    def test_the_list_of_a_committed_upload(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        spool = Spool(tmp_path_factory.mktemp("spool"))
        upload = UploadRef("r", 0, 0, "p", "0" * 32)
        done = committed(spool, upload, chunks_of(np.ones(SIZE, np.float32)))
        path = spool.folder(upload).parent / f"{done.digest}{COMMITTED}"
        valid = path.read_bytes()

        @FUZZ
        @given(changed(valid))
        def every(raw: bytes) -> None:
            path.write_bytes(raw)
            with contextlib.suppress(ServerError), open_committed(path, done.digest) as found:
                payloads = [bytes(found.payload(record)) for record in found.records]
                assert sum(map(len, payloads)) == done.payload_bytes

        every()


class TestMessages:
    """Values that either side makes of the other's messages."""

    @FUZZ
    @given(messages(tensors_pb2.Layout))
    def test_layouts(self, message: tensors_pb2.Layout) -> None:
        with contextlib.suppress(WireError):
            check_layout(message)

    @FUZZ
    @given(messages(tensors_pb2.BlobManifest))
    def test_manifests(self, message: tensors_pb2.BlobManifest) -> None:
        with contextlib.suppress(WireError):
            check_manifest(message)

    @FUZZ
    @given(messages(transfer_pb2.ChunkHeader), messages(transfer_pb2.UploadKey))
    def test_headers_and_keys(self, header: transfer_pb2.ChunkHeader, key: transfer_pb2.UploadKey) -> None:
        assert key_from_proto(key).tensor_set
        with contextlib.suppress(WireError):
            check_header(header)

    @FUZZ
    @given(messages(participation_pb2.Participate), st.booleans())
    def test_invitations(self, message: participation_pb2.Participate, bare: bool) -> None:
        if bare:  # but for its numbers it is valid
            del message.inputs[:]
            message.settings.clear()
            message.inputs.add(name="model", layout=layout_to_proto(LAYOUT), blob="a" * 64)
            message.kind, message.encoding = participation_pb2.Participate.KIND_TRAIN, tensors_pb2.ENCODING_FLOAT32
        with contextlib.suppress(WireError):
            check_invitation(message)

    @FUZZ
    @given(messages(participation_pb2.Participate))
    def test_settings(self, message: participation_pb2.Participate) -> None:
        with contextlib.suppress(WireError):
            settings_from_proto(message.settings)


def test_chunks_that_are_valid_come_back_as_they_were() -> None:
    @FUZZ
    @given(st.integers(0, 2**40), st.binary(min_size=4, max_size=400), st.booleans())
    def every(offset: int, payload: bytes, keyed: bool) -> None:
        payload = payload[: len(payload) // 4 * 4]
        header = header_of(ElementRange.run(offset, len(payload) // 4), Encoding.FLOAT32, payload)
        key = UploadKey("r", 1, 2, "0" * 32) if keyed else None
        found = parse_upload(frame_upload(header, payload, key))
        assert (found.header, bytes(found.payload), found.key) == (header, payload, key)
        found.verify()
        index, came = parse_download(frame_download(offset, payload))
        assert (index, bytes(came)) == (offset, payload)

    every()
