"""Vectors of serialised messages, each with its fields in protobuf's JSON mapping."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from atoll.server.runs.instructions import Invitation
from atoll.wire.chunks import ElementRange, UploadKey, frame_upload, header_of, update_digest
from atoll.wire.digest import BlobManifest
from atoll.wire.encoding import Encoding
from atoll.wire.fields import submessage
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto, settings_to_proto
from atoll.wire.scores import SCORE_BINS
from atoll.wire.seeds import task_seed
from atoll.wire.status import ERROR_TRAILER, ErrorDetail, Fault, Recovery
from atoll.wire.v1 import errors_pb2, participation_pb2, tensors_pb2, transfer_pb2

_KEY = participation_pb2.RoundKey(run="rabcdefghijklm", round=3, attempt=1)
_UPLOAD = UploadKey(_KEY.run, _KEY.round, _KEY.attempt, "00112233445566778899aabbccddeeff")
_LAYOUT = Layout((TensorSpec("w", (2, 2), Dtype.FLOAT32),))
_WEIGHTS = np.array([1.0, -2.0, 0.5, 0.0], np.float32).tobytes()


def errors() -> dict[str, Any]:
    """The trailer of failed calls."""
    details = (
        ErrorDetail(
            "update.not_finite", Fault.CALLER, "the update has a NaN", "lower the rate", recovery=Recovery.NEXT_TASK
        ),
        ErrorDetail("upload.incomplete", Fault.CALLER, "elements 4 to 7 are missing", "send what is missing"),
        ErrorDetail("server.starting", Fault.SERVER, "the server is starting", "try again", retry_after_s=1.0),
        ErrorDetail("round.over", Fault.TIMING, "round 3.1: it is over", "wait for the next invitation"),
        ErrorDetail("participant.revoked", Fault.CALLER, "p1 was revoked", "enrol anew", recovery=Recovery.ENROL),
    )
    cases = []
    for detail in details:
        raw = detail.trailer()[1]
        case = _case(errors_pb2.ErrorDetail.FromString(raw), raw)
        cases.append(case | {"base64": base64.b64encode(raw).decode()})
    return {
        "about": f"ErrorDetail in the trailer {ERROR_TRAILER}; `base64` as HTTP/2 has it, perhaps without padding",
        "trailer": ERROR_TRAILER,
        "cases": cases,
    }


def invitations() -> dict[str, Any]:
    """Invitations as the server serialises them: fields out of order, each singular field once."""
    manifest = BlobManifest.of_buffer(_WEIGHTS, 1024)
    model = tensors_pb2.TensorSet(name="model", blob=manifest.name)
    layout = submessage(tensors_pb2.TensorSet.LAYOUT_FIELD_NUMBER, layout_to_proto(_LAYOUT).SerializeToString())
    small = tensors_pb2.TensorSet(name="model", blob=manifest.name, content=_WEIGHTS, chunk_bytes=1024)
    return {
        "about": "CheckInResponse with an invitation: the model comes along in the first, not in the second",
        "cases": [_invitation(small, layout), _invitation(model, layout)],
    }


def _invitation(model: tensors_pb2.TensorSet, layout: bytes) -> dict[str, Any]:
    task = participation_pb2.Participate(
        key=_KEY,
        run_name="digits",
        kind=participation_pb2.Participate.KIND_TRAIN,
        rounds_total=20,
        cohort_size=8,
        settings=settings_to_proto({"epochs": 2}),
        encoding=tensors_pb2.ENCODING_FLOAT32,
        max_abs=32.0,
        return_spread_s=0.03125,
    )
    own = participation_pb2.Participate(remaining_s=60.0, max_weight=100, seed=task_seed(7, 3, "p1"))
    inputs = submessage(participation_pb2.Participate.INPUTS_FIELD_NUMBER, model.SerializeToString(), layout)
    raw = Invitation(task.SerializeToString(deterministic=True) + inputs, own.SerializeToString()).serialised()
    return _case(participation_pb2.CheckInResponse.FromString(raw), raw)


def seeds() -> dict[str, Any]:
    """Seeds of tasks, of which the invitation has the last."""
    named = [(0, 0, "p1"), (7, 0, "p1"), (7, 3, "p1"), (7, 3, "p2"), (2**63 - 1, 2**32 - 1, "pabcdefghijklm")]
    cases = [
        {
            "job_seed": str(seed),
            "round": number,
            "participant": participant,
            "seed": str(task_seed(seed, number, participant)),
        }
        for seed, number, participant in named
    ]
    return {"about": "Participate.seed by the seed of the job, the round and the participant", "cases": cases}


def uploads() -> dict[str, Any]:
    """The messages of an upload stream, with the payload last as both sides write it, and in another order."""
    header = header_of(ElementRange.run(0, 4), Encoding.FLOAT32, _WEIGHTS)
    first, next_one = frame_upload(header, _WEIGHTS, _UPLOAD), frame_upload(header, _WEIGHTS)
    message = transfer_pb2.UploadRequest.FromString(next_one)
    payload_first = submessage(3, _WEIGHTS) + submessage(2, message.chunk.SerializeToString())
    raws = (first, next_one, payload_first)
    return {
        "about": "UploadRequest: the first of a stream, one that follows, and the same with the payload first",
        "cases": [_case(transfer_pb2.UploadRequest.FromString(raw), raw) for raw in raws],
    }


def reports() -> dict[str, Any]:
    """A report with a small update, a report of an evaluation, and one with a score histogram."""
    header = header_of(ElementRange.run(0, 4), Encoding.FLOAT32, _WEIGHTS)
    trained = transfer_pb2.ReportRequest(
        round=_KEY,
        upload_id=_UPLOAD.upload_id,
        digest=update_digest([header]),
        weight=100,
        metrics={"loss": 0.25},
        train_seconds=1.5,
        update=frame_upload(header, _WEIGHTS, _UPLOAD),
    )
    evaluated = transfer_pb2.ReportRequest(round=_KEY, evaluation={"accuracy": 0.75}, evaluation_weight=40)
    scored = transfer_pb2.ReportRequest(round=_KEY, evaluation_weight=40)
    for bins, place in ((scored.scores["auc"].negatives, 5), (scored.scores["auc"].positives, 250)):
        bins.extend(20 * (at == place) for at in range(SCORE_BINS))
    messages = (trained, evaluated, scored)
    return {
        "about": "ReportRequest: with the update in `update`, which is one UploadRequest; of an evaluation; and with a "
        "score histogram",
        "cases": [_case(message, message.SerializeToString(deterministic=True)) for message in messages],
    }


def _case(message: Message, raw: bytes) -> dict[str, Any]:
    return {"message": raw.hex(), "fields": MessageToDict(message, preserving_proto_field_name=True)}
