"""Every file format and framed message: a valid example, its reader, and the errors by which the reader refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from atoll.client import ClientError
from atoll.client._connection import identity as identities
from atoll.client._privacy.ledger import read_account
from atoll.client._privacy.promises import read_promises
from atoll.client._privacy.randomisers import cost
from atoll.client._session.invitation import invitation_of
from atoll.client.cli.policy_file import read_policy
from atoll.formats import safetensors
from atoll.server.backup.manifest import MANIFEST_FILE, File, Manifest, RunLine, read_manifest
from atoll.server.config.config_file import load_config
from atoll.server.errors import ServerError
from atoll.server.identity import Authority, CertificateRequest, OperatorCredential, Peer
from atoll.server.ingest.records import RECORD_BYTES, Record, read_index
from atoll.server.jobs import parse_job
from atoll.server.jobs.reference import TYPICAL
from atoll.server.rounds import Accepted, RoundKey
from atoll.server.runs.journal import event_from_json, event_to_json
from atoll.server.stores import DirectoryBlobStore
from atoll.wire.chunks import (
    ElementRange,
    UploadKey,
    frame_download,
    frame_upload,
    header_from_proto,
    header_of,
    header_to_proto,
    parse_download,
    parse_upload,
)
from atoll.wire.digest import BlobManifest
from atoll.wire.encoding import Encoding, decode, encode
from atoll.wire.errors import WireError
from atoll.wire.join_token import JoinToken
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_from_proto, layout_to_proto, manifest_from_proto, manifest_to_proto
from atoll.wire.privacy_terms import PrivacyAdjacency, PrivacyMechanism, PrivacySampling, PrivacyTerms, terms_to_proto
from atoll.wire.status import ERROR_TRAILER, ErrorDetail, Fault, detail_from_trailers
from atoll.wire.v1 import participation_pb2, tensors_pb2, transfer_pb2
from tests.server.rpc.world import Key

NOW = 1.8e9
LAYOUT = Layout((TensorSpec("w", (30, 8), Dtype.FLOAT32), TensorSpec("b", (10,), Dtype.BFLOAT16)))
PAYLOAD = bytes(range(64))
HEADER = header_of(ElementRange.run(8, 16), Encoding.FLOAT32, PAYLOAD)
CHUNK = frame_upload(HEADER, PAYLOAD, UploadKey("r", 1, 0, "0" * 32))
BLOCKS = 131
"""Elements of the quantised payloads."""
BLOCKS_8, BLOCKS_4 = (
    encode(np.linspace(-1, 1, BLOCKS), encoding).tobytes() for encoding in (Encoding.INT8_BLOCK, Encoding.INT4_BLOCK)
)
TERMS = PrivacyTerms(
    mechanism=PrivacyMechanism.GAUSSIAN,
    noise_multiplier=1.0,
    clip_norm=0.5,
    epsilon=8.0,
    delta=1e-5,
    adjacency=PrivacyAdjacency.ADD_REMOVE,
    sampling=PrivacySampling.POISSON,
    sample_rate=0.1,
    population="digits",
)
POLICY = b'min_cohort = 3\nmax_rounds_per_day = 10\nruns = ["digits-*"]\n[settings.epochs]\nmax = 5\n'
POLICY += b'[privacy]\nmax_epsilon = 8.0\nmechanisms = ["tree"]\n[local_privacy]\nepsilon = 1.0\ndelta = 1e-7\n'
POLICY += b"clip_norm = 1.0\nmax_epsilon = 8.0\nmax_delta = 1e-5\n"
SERVER = b'port = 9000\nhost = "127.0.0.1"\nworkers = 2\n[limits]\nreplies_per_task = 3\nhandshake_s = 5.5\n'
BACK_UP = Manifest(
    atoll="0.1.0",
    schema_revision="0002",
    made_at=NOW,
    runs=(RunLine(run="r1", name="digits", status="running", rounds_released=2),),
    files=(File(path="ca/authority.key", size_bytes=3, digest="0" * 64),),
    blobs=("a" * 64,),
    stored_bytes=3,
)
PROMISES = json.dumps(
    {
        "version": 1,
        "limit": {"epsilon": 8.0, "delta": "inf"},
        "promises": [
            {
                "server": "sha256:00",
                "population": "clinic",
                "run": "r1",
                "run_name": "digits",
                "epsilon": 6.58,
                "delta": 1e-5,
                "first_at": "2026-11-21T19:00:00+00:00",
                "runs": 1,
            }
        ],
    }
).encode()
LEDGER = json.dumps(
    {
        "version": 1,
        "unit": "sample",
        "limit": {"epsilon": 8.0, "delta": 1e-5},
        "epsilon": 2.5,
        "entries": [
            {
                "run": "r1",
                "run_name": "digits",
                "release": {
                    "mechanism": "gaussian",
                    "noise_multiplier": 2.0,
                    "epsilon": 0.0,
                    "sample_rate": 1.0,
                    "count": 3,
                },
                "rounds": 3,
                "first_at": "2026-11-21T12:00:00+00:00",
                "last_at": "2026-11-21T12:00:00+00:00",
            }
        ],
    }
).encode()
MessageType = TypeVar("MessageType", bound=Message)


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: ``read`` takes bytes, ``refuses`` are its errors. Without any, ``read`` ignores invalid bytes."""

    valid: bytes
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...] = ()

    def try_(self, data: bytes) -> None:
        """Read bytes of any kind; any other error is a bug."""
        with contextlib.suppress(*self.refuses):
            self.read(data)


def all_formats(folder: Path) -> dict[str, Format]:
    """Formats by name; those that are files are written to the folder."""
    return _framed() | _parsed() | _secrets(folder) | _stored(folder)


def _framed() -> dict[str, Format]:
    trailer = ErrorDetail("a.b", Fault.CALLER, "what", "do", 1.0).trailer()[1]
    invitation = participation_pb2.Participate(
        kind=participation_pb2.Participate.KIND_TRAIN, encoding=tensors_pb2.ENCODING_FLOAT32, remaining_s=9.0
    )
    invitation.inputs.add(name="model", layout=layout_to_proto(LAYOUT), blob="a" * 64)
    invitation.ranges.add(offset=0, block=1, stride=1, count=1)
    invitation.privacy.CopyFrom(terms_to_proto(TERMS))
    return {
        "upload chunk": Format(CHUNK, parse_upload, (WireError,)),
        "download chunk": Format(frame_download(3, PAYLOAD), parse_download, (WireError,)),
        "int8 blocks": Format(BLOCKS_8, lambda data: check_blocks(data, Encoding.INT8_BLOCK), (WireError,)),
        "int4 blocks": Format(BLOCKS_4, lambda data: check_blocks(data, Encoding.INT4_BLOCK), (WireError,)),
        "chunk header": _message(header_to_proto(HEADER), check_header),
        "layout": _message(layout_to_proto(LAYOUT), check_layout),
        "manifest": _message(manifest_to_proto(BlobManifest.of_buffer(bytes(5000), 1024)), check_manifest),
        "invitation": _message(invitation, check_invitation),
        "error trailer": Format(trailer, check_trailer),
    }


def _parsed() -> dict[str, Format]:
    event = event_to_json(Accepted(RoundKey(1, 0), "p")).encode()
    return {
        "job": Format(TYPICAL.encode(), parse_job, (ServerError,)),
        "event": Format(event, lambda data: event_from_json(data.decode("latin-1")), (ValueError,)),
        "request": Format(Key().csr, CertificateRequest.parse, (ServerError,)),
    }


def _secrets(folder: Path) -> dict[str, Format]:
    authority = Authority.open(folder / "ca", now=NOW)
    issued = authority.issue_operator("admin", now=NOW).issued.pem
    ca = authority.certificate_pem
    OperatorCredential("admin", "127.0.0.1:1", ca.decode(), issued.decode(), "key").write(folder / "valid.json")
    token = JoinToken("127.0.0.1:7401", ca, "t", "s").encode().encode()
    identities.store(folder, identities.Identity("p1", "acme", "edge", "127.0.0.1:1", "cert", "ca", "key"))
    identity = (folder / identities.FILE_NAME).read_bytes()
    load = through_file(folder, identities.FILE_NAME, lambda path: identities.load(path.parent))
    operator = through_file(folder, "operator.json", OperatorCredential.read)
    return {
        "join token": Format(token, lambda data: JoinToken.decode(data.decode("latin-1")), (WireError,)),
        "certificate": Format(issued, Peer.from_pem, (ServerError,)),
        "identity": Format(identity, load, (ClientError,)),
        "operator.json": Format((folder / "valid.json").read_bytes(), operator, (ServerError,)),
    }


def _stored(folder: Path) -> dict[str, Format]:
    safetensors.write(folder / "valid.safetensors", LAYOUT, [bytes(LAYOUT.size_bytes)])
    tensors = (folder / "valid.safetensors").read_bytes()
    with DirectoryBlobStore(folder / "blobs").create(chunk_bytes=1024) as writer:
        writer.write(PAYLOAD * 30)
        name = writer.commit().name
    blob = DirectoryBlobStore(folder / "blobs").path_of(name)
    record = Record(HEADER, "s", 0, 1.0, 2.0, bytes(8)).pack()

    def whole(path: Path) -> None:
        with DirectoryBlobStore(path.parents[1]).open(name) as opened:
            assert bytes(opened.read(0, len(PAYLOAD) * 30)) == PAYLOAD * 30

    def config(path: Path) -> object:
        return load_config({}, path)

    return {
        "server.toml": Format(SERVER, through_file(folder, "server.toml", config), (ServerError,)),
        "policy": Format(POLICY, through_file(folder, "policy.toml", read_policy), (ClientError,)),
        "ledger": Format(LEDGER, through_file(folder, "ledger.json", check_ledger), (ClientError,)),
        "promises": Format(PROMISES, through_file(folder, "promises.json", check_promises), (ClientError,)),
        "safetensors": Format(tensors, through_file(folder, "any.safetensors", safetensors.read_header), (WireError,)),
        "blob": Format(blob.read_bytes(), through_file(blob.parent, name, whole), (ServerError,)),
        "spool index": Format(record * 3, through_file(folder, "s.index", check_index)),
        "backup": Format(
            BACK_UP.model_dump_json().encode(),
            through_file(folder, MANIFEST_FILE, lambda path: read_manifest(path.parent)),
            (ServerError,),
        ),
    }


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


def _message(valid: MessageType, check: Callable[[MessageType], object]) -> Format:
    """Return the format of a protobuf message."""
    kind = type(valid)
    return Format(valid.SerializeToString(), lambda data: check(kind.FromString(data)), (WireError, DecodeError))


def check_layout(message: tensors_pb2.Layout) -> None:
    """Raises ``WireError``; an accepted layout survives a round trip."""
    found = layout_from_proto(message)
    assert layout_from_proto(layout_to_proto(found)) == found
    assert 0 < found.size <= 2**48


def check_manifest(message: tensors_pb2.BlobManifest) -> None:
    """Raises ``WireError``."""
    assert manifest_from_proto(message).size_bytes == message.size_bytes


def check_blocks(payload: bytes, encoding: Encoding) -> None:
    """Raises ``WireError``; accepted values are numbers, infinite at most for scales near the largest."""
    values = decode(payload, encoding, BLOCKS)
    scales = np.frombuffer(payload[:8], np.float32)
    assert values.shape == (BLOCKS,)
    assert not np.isnan(values).any()
    assert np.isfinite(values).all() or scales.max() > 2.0**120


def check_header(message: transfer_pb2.ChunkHeader) -> None:
    """Raises ``WireError``; an accepted header has a size that a chunk may have."""
    assert header_from_proto(message).payload_bytes <= 4 << 20


def check_invitation(message: participation_pb2.Participate) -> None:
    """Raises ``WireError``; the times of an accepted invitation are valid for clocks and timers."""
    invitation = invitation_of(message)
    control = invitation.task.control
    control.arm(0.1)
    control.disarm()
    assert math.isfinite(control.remaining_s)
    assert math.isfinite(invitation.return_spread_s)


def check_trailer(raw: bytes) -> ErrorDetail | None:
    """None for unreadable bytes; an accepted wait is a valid time."""
    found = detail_from_trailers([(ERROR_TRAILER, raw)])
    assert found is None or found.retry_after_s is None or 0.0 < found.retry_after_s < math.inf
    return found


def check_ledger(path: Path) -> None:
    """Raises ``UsageError``; accepted entries can be added up."""
    account = read_account(path)
    assert account is not None
    assert cost(account.releases, 1e-5) >= 0


def check_promises(path: Path) -> None:
    """Raises ``UsageError``; accepted entries can be added up."""
    record = read_promises(path)
    assert record is not None
    assert record.total.epsilon >= 0
    assert record.total.delta >= 0
    assert record.runs >= len(record.promises)


def check_index(path: Path) -> list[Record]:
    """Return the records that are intact."""
    found = read_index(path)
    assert len(found) <= path.stat().st_size // RECORD_BYTES
    return found
