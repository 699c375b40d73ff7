"""Convert the server's invitation messages into values, and check them."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from atoll.client._clock import bounded_s
from atoll.client.control import TaskControl
from atoll.client.settings import Settings
from atoll.client.task import RoundKey, Task, TaskKind
from atoll.wire.chunks import ElementRange, check_disjoint, range_from_proto
from atoll.wire.digest import DIGEST_BYTES, BlobManifest
from atoll.wire.encoding import encoding_of
from atoll.wire.errors import WireError
from atoll.wire.messages import layout_from_proto, settings_from_proto
from atoll.wire.privacy_terms import terms_from_proto
from atoll.wire.seeds import SEED_BITS
from atoll.wire.statistics_query import query_from_proto
from atoll.wire.v1 import participation_pb2, tensors_pb2

if TYPE_CHECKING:
    from atoll.wire.layout import Layout

log = logging.getLogger("atoll.client")

MODEL = "model"
MAX_REASON_CHARS = 1000
MAX_RUN_CHARS = 256
MAX_TASK_S = 90 * 86_400.0
"""Longest accepted time to a deadline: longer than any round, and short enough for every clock."""
MAX_RANGES = 65_536
"""Maximum number of ranges: the number of tensors of the largest layout."""
MAX_FROZEN = 256
"""Maximum number of patterns of frozen tensors."""
_HEX = frozenset("0123456789abcdef")
_KINDS = {
    participation_pb2.Participate.KIND_TRAIN: TaskKind.TRAIN,
    participation_pb2.Participate.KIND_EVALUATE: TaskKind.EVALUATE,
    participation_pb2.Participate.KIND_STATISTICS: TaskKind.STATISTICS,
}


@dataclass(frozen=True)
class Input:
    """A named tensor set: to be downloaded, or part of the invitation if ``content`` is not empty."""

    name: str
    layout: Layout
    blob: str
    content: bytes = b""


@dataclass(frozen=True)
class Invitation:
    """A task, its inputs, and the seconds over which its members spread their reconnects."""

    task: Task
    inputs: tuple[Input, ...]
    return_spread_s: float = 0.0

    @property
    def model(self) -> Input:
        """The input to train."""
        return next(item for item in self.inputs if item.name == MODEL)


def invitation_of(message: participation_pb2.Participate) -> Invitation:
    """The values of an invitation.

    Raises:
        WireError: for an unknown kind, encoding or setting type, a missing model, an invalid blob name, elements
            outside the model, too many patterns of frozen tensors, invalid privacy terms, an invalid query, or a seed
            out of range.
    """
    inputs = tuple(
        Input(item.name or MODEL, layout_from_proto(item.layout), _blob_of(item), _content_of(item))
        for item in message.inputs
    )
    model = next((item for item in inputs if item.name == MODEL), None)
    if model is None:
        raise WireError("the invitation has no input named 'model'")
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise WireError(f"the invitation asks for kind {message.kind}, which this version does not know; upgrade it")
    task = Task(
        key=key_of(message.key),
        run_name=message.run_name,
        kind=kind,
        rounds_total=message.rounds_total,
        settings=Settings(settings_from_proto(message.settings)),
        cohort_size=message.cohort_size,
        max_abs=message.max_abs,
        control=TaskControl(remaining_s_of(message)),
        encoding=encoding_of(message.encoding),
        evaluate=message.evaluate,
        model_bytes=sum(item.layout.size_bytes for item in inputs),
        ranges=_ranges_of(message, model.layout),
        frozen=_frozen_of(message),
        privacy=terms_from_proto(message.privacy) if message.HasField("privacy") else None,
        statistics=query_from_proto(message.statistics) if kind is TaskKind.STATISTICS else None,
        **own_fields(message),
    )
    return Invitation(task, inputs, bounded_s(message.return_spread_s, MAX_TASK_S))


class OwnFields(TypedDict):
    """Fields of a task that are specific to a member, besides its deadline."""

    max_weight: int
    traceparent: str
    seed: int


def own_fields(message: participation_pb2.Participate) -> OwnFields:
    """The member-specific part of an invitation.

    Raises:
        WireError: for a seed out of range.
    """
    return {"max_weight": message.max_weight, "traceparent": message.traceparent, "seed": _seed_of(message)}


def _seed_of(message: participation_pb2.Participate) -> int:
    """The seed of the task; a random one if the server's version sends no seeds."""
    if not message.HasField("seed"):
        return secrets.randbits(SEED_BITS)
    if message.seed >= 2**SEED_BITS:
        raise WireError(f"the invitation has seed {message.seed}, at most 2^{SEED_BITS} - 1")
    return message.seed


def _ranges_of(message: participation_pb2.Participate, layout: Layout) -> tuple[ElementRange, ...]:
    if len(message.ranges) > MAX_RANGES:
        raise WireError(f"the invitation asks for {len(message.ranges)} ranges of elements, at most {MAX_RANGES}")
    ranges = tuple(map(range_from_proto, message.ranges))
    check_disjoint(ranges, layout.size)
    return ranges


def _frozen_of(message: participation_pb2.Participate) -> tuple[str, ...]:
    if len(message.frozen) > MAX_FROZEN:
        raise WireError(f"the invitation has {len(message.frozen)} patterns of frozen tensors, at most {MAX_FROZEN}")
    return tuple(message.frozen)


def _blob_of(item: tensors_pb2.TensorSet) -> str:
    if len(item.blob) != 2 * DIGEST_BYTES or not _HEX.issuperset(item.blob):
        raise WireError(f"blob name {item.blob[:80]!r}: expected {2 * DIGEST_BYTES} hexadecimal digits")
    return item.blob


def _content_of(item: tensors_pb2.TensorSet) -> bytes:
    """The model in the invitation; empty if it does not match the blob, which is then downloaded."""
    if not item.content:
        return b""
    try:
        if BlobManifest.of_buffer(item.content, item.chunk_bytes).name == item.blob:
            return item.content
    except (WireError, ValueError) as error:  # an invalid chunk_bytes
        log.warning("the model in the invitation cannot be read: %s", error)
    log.warning("the model in the invitation is not %s...; it is downloaded", item.blob[:16])
    return b""


def remaining_s_of(message: participation_pb2.Participate) -> float:
    """Seconds to the task's deadline; at most ``MAX_TASK_S``."""
    return bounded_s(message.remaining_s, MAX_TASK_S)


def key_of(message: participation_pb2.RoundKey) -> RoundKey:
    """The round's key.

    Raises:
        WireError: if the run's name is too long or has characters that do not print.
    """
    if not message.run.isprintable():
        raise WireError(f"run {message.run[:80]!r}: a name that does not print")
    if len(message.run) > MAX_RUN_CHARS:
        raise WireError(f"run {message.run[:80]!r}...: {len(message.run)} characters, at most {MAX_RUN_CHARS}")
    return RoundKey(message.run, message.round, message.attempt)


def round_key_message(key: RoundKey) -> participation_pb2.RoundKey:
    """The round's key as its message."""
    return participation_pb2.RoundKey(run=key.run, round=key.round, attempt=key.attempt)


def reply_to(
    key: RoundKey, verdict: participation_pb2.TaskReply.Verdict.ValueType, reason: str = ""
) -> participation_pb2.CheckInRequest:
    """The participant's answer about a round."""
    reply = participation_pb2.TaskReply(key=round_key_message(key), verdict=verdict, reason=reason[:MAX_REASON_CHARS])
    return participation_pb2.CheckInRequest(reply=reply)
