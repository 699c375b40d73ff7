"""Messages between a simulation and its workers: JSON in frames, never code.

A frame is the length of its text (u32, little-endian) and the text. Bytes are base64.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from atoll.server.ingest.node import FoldItem, SumKey
from atoll.simulation.tasks import Opening, Outcome, TaskRequest

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = struct.Struct("<I")
Message = dict[str, Any]

_OPENINGS: TypeAdapter[Opening] = TypeAdapter(Opening)
_SUM_KEYS: TypeAdapter[SumKey] = TypeAdapter(SumKey)


def framed(message: Message) -> bytes:
    """The encoded form of a message."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def opening_to(opening: Opening) -> Message:
    """A round for the workers."""
    return {
        "opening": _OPENINGS.dump_python(replace(opening, shared=b""), mode="json"),
        "shared": _text(opening.shared),
    }


def opening_from(message: Message, model_path: Callable[[str], Path] | None = None) -> Opening:
    """See ``opening_to``; ``model_path`` returns the file of the model's blob, if it may have moved."""
    found = replace(_OPENINGS.validate_python(message["opening"]), shared=_bytes(message["shared"]))
    return found if model_path is None else replace(found, model=model_path(found.model.name))


def request_to(request: TaskRequest) -> list[Any]:
    """A task for a worker."""
    return [request.participant, request.seed, _text(request.own), request.before, request.after]


def request_from(parts: Sequence[Any]) -> TaskRequest:
    """See ``request_to``."""
    participant, seed, own, before, after = parts
    return TaskRequest(participant, seed, _bytes(own), before, after)


def outcome_to(outcome: Outcome) -> list[Any]:
    """A finished task as a message, in the order of ``Outcome``'s fields."""
    return [
        outcome.participant,
        outcome.seconds,
        _text(outcome.report),
        outcome.payload_bytes,
        outcome.squares,
        outcome.rejection,
        outcome.declined,
        outcome.failure,
        outcome.traceback,
        outcome.keeps_files,
    ]


def outcome_from(parts: Sequence[Any]) -> Outcome:
    """See ``outcome_to``."""
    participant, seconds, report, payload_bytes, squares, *why = parts
    return Outcome(participant, seconds, _bytes(report), payload_bytes, tuple(squares), *why)


def sum_to(key: SumKey, items: Sequence[FoldItem]) -> Message:
    """A request for a worker's sum."""
    return {
        "sum": _SUM_KEYS.dump_python(key, mode="json"),
        "items": [[one.run, one.round, one.attempt, one.participant, one.digest, one.weight] for one in items],
    }


def sum_from(message: Message) -> tuple[SumKey, list[FoldItem]]:
    """See ``sum_to``."""
    return _SUM_KEYS.validate_python(message["sum"]), [FoldItem(*parts) for parts in message["items"]]


def _text(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text)
