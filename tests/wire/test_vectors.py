"""The test vectors of ``protos/vectors``: they are what the code gives, and mean what docs/protocol.md says.

The digests are worked out here from the page's words alone, beside the code that made the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from blake3 import blake3
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from atoll.wire.chunks import parse_upload
from atoll.wire.encoding import Encoding, decode, encode
from atoll.wire.errors import JoinTokenError, WireError
from atoll.wire.join_token import JoinToken
from atoll.wire.messages import layout_from_proto
from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import errors_pb2, participation_pb2, tensors_pb2, transfer_pb2
from tests.vectors.encodings import floats
from tests.vectors.files import FOLDER, contents, stored

MESSAGES: dict[str, type[Message]] = {
    "error.json": errors_pb2.ErrorDetail,
    "invitation.json": participation_pb2.CheckInResponse,
    "upload.json": transfer_pb2.UploadRequest,
    "report.json": transfer_pb2.ReportRequest,
}
_GROUPS = (3, 4)
_FIXED = {1: 8, 5: 4}


SERIALISED = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name in MESSAGES
    for place, case in enumerate(stored(name)["cases"])
]


def cases(name: str, part: str = "cases") -> list[Any]:
    return [pytest.param(case, id=str(place)) for place, case in enumerate(stored(name)[part])]


@pytest.mark.parametrize("name", contents())
def test_the_files_are_what_the_code_gives(name: str) -> None:
    assert (FOLDER / name).read_text() == contents()[name], "run `python -m tests.vectors`"


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*contents(), "ca.pem"}


@pytest.mark.parametrize("case", cases("layout.json"))
def test_a_layout_has_the_digest_of_its_canonical_text(case: dict[str, Any]) -> None:
    lines = [
        f"{len(tensor['name'].encode())} {tensor['name']} {tensor['dtype']} {','.join(map(str, tensor['shape']))}"
        for tensor in case["tensors"]
    ]
    assert blake3("\n".join(["atoll layout 1", *lines]).encode()).hexdigest() == case["digest"]
    layout = layout_from_proto(tensors_pb2.Layout.FromString(bytes.fromhex(case["message"])))
    assert (layout.digest, layout.size, layout.size_bytes) == (case["digest"], case["elements"], case["bytes"])


@pytest.mark.parametrize("case", cases("blob.json"))
def test_a_blob_has_the_name_of_its_chunks(case: dict[str, Any]) -> None:
    size, cut = case["bytes"], case["chunk_bytes"]
    data = bytes(index % 251 for index in range(size))
    digests = [blake3(data[at : at + cut]).digest() for at in range(0, size, cut)]
    assert [digest.hex() for digest in digests] == case["chunk_digests"]
    head = b"atoll blob 1\n" + struct.pack("<QI", size, cut)
    assert blake3(head + b"".join(digests)).hexdigest() == case["name"]


@pytest.mark.parametrize("case", cases("update.json"))
def test_an_update_has_the_digest_of_its_chunks_in_order(case: dict[str, Any]) -> None:
    ordered = sorted(case["chunks"], key=lambda chunk: [chunk[key] for key in ("offset", "block", "stride", "count")])
    hashed = b"atoll update 1\n"
    for chunk in ordered:
        numbers = (chunk[key] for key in ("offset", "block", "stride", "count", "encoding"))
        digest = blake3(bytes.fromhex(chunk["payload"])).digest()
        assert digest.hex() == chunk["digest"]
        hashed += struct.pack("<QQQQI", *numbers) + digest
    assert blake3(hashed).hexdigest() == case["digest"]
    assert sum(chunk["block"] * chunk["count"] for chunk in ordered) == case["elements"]


@pytest.mark.parametrize("case", cases("encodings.json"))
def test_values_are_encoded_and_decoded_bit_for_bit(case: dict[str, Any]) -> None:
    encoding = Encoding(case["encoding"])
    assert encode(floats(case["values"], encoding), encoding).tobytes().hex() == case["payload"]
    decoded = decode(bytes.fromhex(case["payload"]), encoding, len(case["values"]))
    assert decoded.tobytes() == floats(case["decoded"], encoding).tobytes()


def test_every_encoding_has_vectors() -> None:
    assert {case["encoding"] for case in stored("encodings.json")["cases"]} == {int(item) for item in Encoding}


@pytest.mark.parametrize("case", cases("encodings.json", "refused"))
def test_payloads_that_cannot_be_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode(bytes.fromhex(case["payload"]), Encoding(case["encoding"]), case["count"])


@pytest.mark.parametrize("case", cases("join-token.json"))
def test_a_join_token_is_read(case: dict[str, Any]) -> None:
    token = JoinToken.decode(case["token"])
    assert (token.address, token.token_id, token.secret) == (case["address"], case["id"], case["secret"])
    assert token.ca_certificate_pem == (FOLDER / "ca.pem").read_bytes()


@pytest.mark.parametrize("case", cases("join-token.json"))
def test_a_join_token_is_what_the_page_says(case: dict[str, Any]) -> None:
    prefix, fields, certificate, checksum = "".join(case["token"].split()).split(".")
    assert prefix == "atoll-join-1"
    values = json.loads(base64.urlsafe_b64decode(fields + "=" * (-len(fields) % 4)))
    assert values == {key: case[key] for key in ("address", "id", "secret")}
    der = base64.urlsafe_b64decode(certificate + "=" * (-len(certificate) % 4))
    assert der.hex() == case["ca_certificate_der"]
    hashed = hashlib.sha256(f"{prefix}.{fields}.{certificate}".encode()).digest()
    assert base64.urlsafe_b64encode(hashed[:9]).decode() == checksum


@pytest.mark.parametrize("case", cases("join-token.json", "refused"))
def test_texts_that_are_no_whole_token_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(JoinTokenError):
        JoinToken.decode(case["token"])


@pytest.mark.parametrize(("name", "case"), SERIALISED)
def test_messages_say_what_their_fields_say(name: str, case: dict[str, Any]) -> None:
    raw = bytes.fromhex(case["message"])
    assert ParseDict(case["fields"], MESSAGES[name]()) == MESSAGES[name].FromString(raw)


@pytest.mark.parametrize(("name", "case"), SERIALISED)
def test_no_message_counts_on_being_merged(name: str, case: dict[str, Any]) -> None:
    """A singular field comes once, at every depth: parsers differ in what they make of a second one."""
    assert list(_repeated_singular(bytes.fromhex(case["message"]), MESSAGES[name].DESCRIPTOR)) == []


def test_the_check_for_merging_finds_it() -> None:
    part = participation_pb2.CheckInResponse(participate=participation_pb2.Participate(run_name="x"))
    twice = part.SerializeToString() * 2
    assert list(_repeated_singular(twice, participation_pb2.CheckInResponse.DESCRIPTOR)) == ["participate"]


@pytest.mark.parametrize("case", cases("error.json"))
def test_a_trailer_is_read(case: dict[str, Any]) -> None:
    name = stored("error.json")["trailer"]
    detail = detail_from_trailers([(name, base64.b64decode(case["base64"]))])
    assert detail is not None
    assert detail.trailer() == (name, bytes.fromhex(case["message"]))
    assert f"RECOVERY_{detail.recovery.name}" == case["fields"]["recovery"]


@pytest.mark.parametrize("case", cases("upload.json"))
def test_an_upload_message_is_read_in_any_order_of_fields(case: dict[str, Any]) -> None:
    chunk = parse_upload(bytes.fromhex(case["message"]))
    chunk.verify()
    assert bytes(chunk.payload) == base64.b64decode(case["fields"]["payload"])
    assert (chunk.key is not None) == ("key" in case["fields"])


def test_the_update_of_a_report_is_one_upload_message() -> None:
    fields = stored("report.json")["cases"][0]["fields"]
    chunk = parse_upload(base64.b64decode(fields["update"]))
    chunk.verify()
    assert chunk.key is not None
    assert chunk.key.upload_id == fields["upload_id"]


def _repeated_singular(raw: bytes, kind: Any) -> Iterator[str]:
    """Names of singular fields that come more than once in a message of this descriptor, or in one inside it."""
    seen: set[int] = set()
    for number, value in _fields(raw):
        field = kind.fields_by_number[number]
        many = field.is_repeated
        if number in seen and not many:
            yield field.name
        seen.add(number)
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            yield from _repeated_singular(value, field.message_type)


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Field numbers of a message, and what is in those that have a length."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire_type = tag & 7
        assert wire_type not in _GROUPS
        if wire_type == 2:
            length, at = _varint(raw, at)
            yield tag >> 3, raw[at : at + length]
            at += length
        else:
            at = at + _FIXED[wire_type] if wire_type in _FIXED else _varint(raw, at)[1]
            yield tag >> 3, b""


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
