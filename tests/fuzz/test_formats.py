"""Every file and every framed text: valid ones pass, changed ones mean no harm or are refused by the reader's error."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.client import ClientError
from atoll.client import identity as identities
from atoll.client.policy_file import read_policy
from atoll.client.session.invitation import invitation_of
from atoll.server.daemon.config_file import load_config
from atoll.server.daemon.journal import event_from_json, event_to_json
from atoll.server.errors import ServerError
from atoll.server.identity import Authority, CertificateRequest, OperatorCredential, Peer
from atoll.server.ingest.committed import COMMITTED, open_committed
from atoll.server.ingest.records import RECORD_BYTES, read_index
from atoll.server.ingest.spool import Spool, UploadRef
from atoll.server.jobs import parse_job
from atoll.server.jobs.reference import TYPICAL
from atoll.server.rounds import Accepted, RoundKey
from atoll.server.stores import DirectoryBlobStore
from atoll.wire import safetensors
from atoll.wire.chunks import (
    ElementRange,
    UploadKey,
    frame_download,
    frame_upload,
    header_from_proto,
    header_of,
    key_from_proto,
    parse_download,
    parse_upload,
)
from atoll.wire.encoding import Encoding
from atoll.wire.errors import WireError
from atoll.wire.join_token import JoinToken
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_from_proto, layout_to_proto, manifest_from_proto, settings_from_proto
from atoll.wire.status import ERROR_TRAILER, ErrorDetail, Fault, detail_from_trailers
from atoll.wire.v1 import participation_pb2, tensors_pb2, transfer_pb2
from tests.fuzz.material import FUZZ, changed, messages, near
from tests.server.ingest.uploads import SIZE, chunks_of, committed, write
from tests.server.rpc.world import Key

NOW = 1.8e9
LAYOUT = Layout((TensorSpec("w", (30, 8), Dtype.FLOAT32), TensorSpec("b", (10,), Dtype.BFLOAT16)))
PAYLOAD = bytes(range(64))
CHUNK = frame_upload(
    header_of(ElementRange.run(8, 16), Encoding.FLOAT32, PAYLOAD), PAYLOAD, UploadKey("r", 1, 0, "0" * 32)
)
POLICY = b'min_cohort = 3\nmax_rounds_per_day = 10\nruns = ["digits-*"]\n[settings.epochs]\nmax = 5\n'
SERVER = b'port = 9000\nhost = "127.0.0.1"\nworkers = 2\n[limits]\nreplies_per_task = 3\nhandshake_s = 5.5\n'


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of file or message: what reads it, from a path or from bytes, and one that is valid."""

    valid: bytes
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]


def through_file(folder: Path, name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of bytes from a reader of paths; files are private, as those of secrets must be."""
    path = folder / name

    def by_path(data: bytes) -> object:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        return read(path)

    return by_path


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    folder = tmp_path_factory.mktemp("formats")
    authority = Authority.open(folder / "ca", now=NOW)
    operator = authority.issue_operator("admin", now=NOW)
    credential = OperatorCredential(
        "admin", "127.0.0.1:1", authority.certificate_pem.decode(), operator.issued.pem.decode(), "key"
    )
    credential.write(folder / "valid.json")
    token = JoinToken("127.0.0.1:7401", authority.certificate_pem, "t", "s").encode().encode()
    identity = identities.Identity("p1", "acme", "edge", "127.0.0.1:1", "cert", "ca", "key")
    identities.store(folder, identity)
    safetensors.write(folder / "valid.safetensors", LAYOUT, [bytes(LAYOUT.size_bytes)])
    event = event_to_json(Accepted(RoundKey(1, 0), "p")).encode()
    return {
        "upload chunk": Format(CHUNK, parse_upload, (WireError,)),
        "download chunk": Format(frame_download(3, PAYLOAD), parse_download, (WireError,)),
        "join token": Format(token, lambda data: JoinToken.decode(data.decode("latin-1")), (WireError,)),
        "job": Format(TYPICAL.encode(), parse_job, (ServerError,)),
        "server.toml": Format(
            SERVER, through_file(folder, "server.toml", lambda path: load_config({}, path)), (ServerError,)
        ),
        "policy": Format(POLICY, through_file(folder, "policy.toml", read_policy), (ClientError,)),
        "identity": Format(
            (folder / identities.FILE_NAME).read_bytes(),
            through_file(folder, identities.FILE_NAME, lambda path: identities.load(path.parent)),
            (ClientError,),
        ),
        "operator.json": Format(
            (folder / "valid.json").read_bytes(),
            through_file(folder, "operator.json", OperatorCredential.read),
            (ServerError,),
        ),
        "safetensors": Format(
            (folder / "valid.safetensors").read_bytes(),
            through_file(folder, "any.safetensors", safetensors.read_header),
            (WireError,),
        ),
        "certificate": Format(operator.issued.pem, Peer.from_pem, (ServerError,)),
        "request": Format(Key().csr, CertificateRequest.parse, (ServerError,)),
        "event": Format(event, lambda data: event_from_json(data.decode("latin-1")), (ValueError,)),
    }


NAMES = (
    "upload chunk",
    "download chunk",
    "join token",
    "job",
    "server.toml",
    "policy",
    "identity",
    "operator.json",
    "safetensors",
    "certificate",
    "request",
    "event",
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
        with contextlib.suppress(*kind.refuses):
            kind.read(data)

    every()


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

    def test_a_blob_is_whole_or_refused(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("blobs")
        with DirectoryBlobStore(folder).create(chunk_bytes=1024) as writer:
            writer.write(bytes(range(256)) * 16)
            name = writer.commit().name
        path = folder / name[:2] / name
        valid = path.read_bytes()

        @FUZZ
        @given(changed(valid))
        def every(data: bytes) -> None:
            path.unlink()
            path.write_bytes(data)
            with contextlib.suppress(ServerError), DirectoryBlobStore(folder).open(name) as blob:
                assert bytes(blob.read(0, 4096)) == valid[:4096]

        every()

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
            found = layout_from_proto(message)
            assert layout_from_proto(layout_to_proto(found)) == found
            assert 0 < found.size <= 2**48

    @FUZZ
    @given(messages(tensors_pb2.BlobManifest))
    def test_manifests(self, message: tensors_pb2.BlobManifest) -> None:
        with contextlib.suppress(WireError):
            assert manifest_from_proto(message).size_bytes == message.size_bytes

    @FUZZ
    @given(messages(transfer_pb2.ChunkHeader), messages(transfer_pb2.UploadKey))
    def test_headers_and_keys(self, header: transfer_pb2.ChunkHeader, key: transfer_pb2.UploadKey) -> None:
        assert key_from_proto(key).tensor_set
        with contextlib.suppress(WireError):
            assert header_from_proto(header).payload_bytes <= 4 << 20

    @FUZZ
    @given(messages(participation_pb2.Participate), st.booleans())
    def test_invitations(self, message: participation_pb2.Participate, bare: bool) -> None:
        if bare:  # but for its numbers it is valid
            del message.inputs[:]
            message.settings.clear()
            message.inputs.add(name="model", layout=layout_to_proto(LAYOUT))
            message.kind, message.encoding = participation_pb2.Participate.KIND_TRAIN, tensors_pb2.ENCODING_FLOAT32
        with contextlib.suppress(WireError):
            invitation = invitation_of(message)
            control = invitation.task.control
            control.arm(0.1)
            control.disarm()
            assert math.isfinite(control.remaining_s)
            assert math.isfinite(invitation.return_spread_s)

    @FUZZ
    @given(messages(participation_pb2.Participate))
    def test_settings(self, message: participation_pb2.Participate) -> None:
        with contextlib.suppress(WireError):
            settings_from_proto(message.settings)

    @FUZZ
    @given(near(ErrorDetail("a.b", Fault.CALLER, "what", "do", 1.0).trailer()[1]))
    def test_error_trailers(self, raw: bytes) -> None:
        found = detail_from_trailers([(ERROR_TRAILER, raw)])
        assert found is None or found.retry_after_s is None or 0.0 < found.retry_after_s < math.inf


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
