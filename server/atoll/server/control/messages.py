"""The control API's messages, and the frozen values of ``runs`` and ``spending`` that commands and reports read.

A value and its message have the same fields, and a field that may be absent in the message may be None in the value
(``tests/server/control/test_messages.py`` compares them all). A new field takes two lines: one in ``control.proto``,
one in the dataclass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from atoll.server.control.runs import BestModel, Progress, RoundSummary, RunDetail, RunSummary
from atoll.text.printable import make_printable
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message

V = TypeVar("V", bound="DataclassInstance")
M = TypeVar("M", bound="Message")


def make_readable(message: Message) -> None:
    """Escape unprintable characters in an answer before it is shown; see ``atoll.text.printable``.

    Ledger lines stay unchanged, because digests are computed over them, and so do layouts, which name a model's
    tensors.
    """
    make_printable(message, as_they_are=("line", "limit_line", "layout"), lines=("job_toml",))


def value_of(kind: type[V], message: Message) -> V:
    """Convert a message to a ``kind``: enum members are lower-case words, absent fields None, maps sorted by key.

    An absent message is read as an empty one if the value requires it.
    """
    within, required = _dataclasses_within(kind), _required_within(kind)
    described = message.DESCRIPTOR.fields_by_name.items()
    return kind(
        **{name: _read(message, field, within.get(name), required=name in required) for name, field in described}
    )


def values_of(kind: type[V], messages: Iterable[Message]) -> tuple[V, ...]:
    """Apply ``value_of`` to each message."""
    return tuple(value_of(kind, message) for message in messages)


def message_of(kind: type[M], /, *sources: object, **given: object) -> M:
    """A message with the given fields, and others from the first source that has them; None leaves a field absent.

    Raises:
        AttributeError: for a field without a value, or a given value without a field.
    """
    names = frozenset(kind.DESCRIPTOR.fields_by_name)
    if unknown := given.keys() - names:
        raise AttributeError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    return kind(**{name: given[name] if name in given else _attribute(sources, name) for name in names})


def detail_of(answer: control_pb2.GetRunResponse) -> RunDetail:
    """A run with its rounds in order."""
    ordered = sorted(answer.rounds, key=lambda item: (item.round, item.attempt))
    return RunDetail(
        value_of(RunSummary, answer.summary),
        values_of(RoundSummary, ordered),
        answer.connected,
        answer.job_toml,
        answer.seed if answer.HasField("seed") else None,
        value_of(BestModel, answer.best) if answer.HasField("best") else None,
    )


def progress_of(change: control_pb2.WatchRunResponse) -> Progress:
    """One change of a run."""
    changed = value_of(RoundSummary, change.round) if change.HasField("round") else None
    return Progress(value_of(RunSummary, change.summary), changed, change.connected)


@dataclass
class Following:
    """The members of the current round of a ``WatchRun`` stream, according to its messages so far."""

    _key: tuple[int, int] | None = None
    _members: dict[str, control_pb2.MemberSummary] = field(default_factory=dict)

    def complete(self, message: control_pb2.WatchRunResponse) -> control_pb2.WatchRunResponse | None:
        """The message with all members of its round, by id; None if more messages about the same change follow."""
        key = (message.round.round, message.round.attempt)
        if key != self._key:
            self._key, self._members = key, {}
        self._members.update({member.participant: member for member in message.round.members})
        if message.more:
            return None
        if message.HasField("round"):
            complete = control_pb2.WatchRunResponse()
            complete.CopyFrom(message)
            del complete.round.members[:]
            complete.round.members.extend(self._members[name] for name in sorted(self._members))
            return complete
        return message


def _read(message: Message, field: Any, kind: type[Any] | None, *, required: bool) -> object:
    if field.has_presence and not message.HasField(field.name) and not required:
        return None
    found = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return MappingProxyType(dict(sorted(found.items())))
    if kind is not None:
        return values_of(kind, found) if field.is_repeated else value_of(kind, found)
    if field.enum_type is not None:
        return _word(field.enum_type, found)
    return tuple(found) if field.is_repeated else found


def _word(enum: EnumDescriptor, number: int) -> str:
    """An enum member's name without the enum's; the number of an unknown member, which a newer server may send."""
    if number not in enum.values_by_number:
        return str(number)
    prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.name).lstrip("_")
    return enum.values_by_number[number].name.lower().removeprefix(f"{prefix.lower()}_")


@cache
def _dataclasses_within(kind: type[Any]) -> Mapping[str, type[Any]]:
    """The dataclasses in the fields of a dataclass: directly, in tuples, or optional."""
    hints = {name: (hint, *get_args(hint)) for name, hint in get_type_hints(kind).items()}
    return {
        name: found
        for name, parts in hints.items()
        if (found := next((part for part in parts if hasattr(part, "__dataclass_fields__")), None)) is not None
    }


@cache
def _required_within(kind: type[Any]) -> frozenset[str]:
    """The fields of a dataclass that always hold another dataclass."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if hasattr(hint, "__dataclass_fields__"))


def _attribute(sources: tuple[object, ...], name: str) -> object:
    for source in sources:
        if hasattr(source, name):
            return getattr(source, name)
    raise AttributeError(f"field {name} is not given, and no source has it")
