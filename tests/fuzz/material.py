"""Inputs of the fuzzing tests: changed valid bytes, random bytes, and messages of any shape."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.properties import examples

EXAMPLES = int(os.environ.get("ATOLL_FUZZ_EXAMPLES", examples(40)))
"""Examples of each property; the same ones in each run unless this is set (README, "Tests")."""
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize="ATOLL_FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
)

Bytes = st.SearchStrategy[bytes]
_ODD_NUMBERS = (0, 1, 2**7 - 1, 2**7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**48 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_MAX_DEPTH = 3
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """Valid bytes after one to four changes: bits flipped, bytes lost, doubled, put in or cut off."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(1, 16))
        match draw(st.sampled_from(("flip", "set", "lose", "double", "insert", "cut"))):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
            case "lose":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case _:
                del data[at:]
    return bytes(data)


def near(*valid: bytes) -> Bytes:
    """Changed forms of valid bytes, these themselves, and bytes at random."""
    return st.one_of(*(changed(one) for one in valid), st.sampled_from(valid), st.binary(max_size=400))


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of a type with any fields set to any values, extreme numbers above all."""
    return _fields(kind.DESCRIPTOR, 0).map(lambda fill: _filled(kind(), fill))


def requests(kind: type[Message]) -> Bytes:
    """Serialised messages of a type, changed ones, and bytes at random."""
    whole = messages(kind).map(lambda message: message.SerializeToString())
    return st.one_of(whole, whole.flatmap(changed), st.binary(max_size=200))


Fill = list[Callable[[Any], None]]


def _filled(message: Message, fill: Fill) -> Message:
    for put in fill:
        put(message)
    return message


def _fields(descriptor: Any, depth: int) -> st.SearchStrategy[Fill]:
    parts = [_field(field, depth) for field in descriptor.fields]
    return st.tuples(*(st.one_of(st.none(), part) for part in parts)).map(lambda found: [one for one in found if one])


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Callable[[Any], None]]:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return st.lists(st.tuples(_value(entry["key"]), _map_value(entry["value"], depth)), max_size=3).map(
            lambda pairs: lambda message: _put_map(getattr(message, name), pairs)
        )
    if field.message_type is not None:
        if depth >= _MAX_DEPTH:
            return st.just(_leave)
        inner = _fields(field.message_type, depth + 1)
        if field.is_repeated:
            return st.lists(inner, max_size=3).map(
                lambda fills: lambda message: _add_all(getattr(message, name), fills)
            )
        return inner.map(lambda fill: lambda message: _put_message(getattr(message, name), fill))
    if field.is_repeated:
        return st.lists(_value(field), max_size=4).map(
            lambda values: lambda message: getattr(message, name).extend(values)
        )
    return _value(field).map(lambda value: lambda message: setattr(message, name, value))


def _map_value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    return _value(field) if field.message_type is None else _fields(field.message_type, depth + 1)


def _put_map(place: Any, pairs: list[tuple[Any, Any]]) -> None:
    for key, value in pairs:
        if isinstance(value, list):
            _filled(place[key], value)
        else:
            place[key] = value


def _add_all(place: Any, fills: list[Fill]) -> None:
    for fill in fills:
        _filled(place.add(), fill)


def _put_message(message: Message, fill: Fill) -> None:
    message.SetInParent()
    _filled(message, fill)


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type in _INTEGERS:
        low, high = _INTEGERS[field.type]
        odd = [number for number in _ODD_NUMBERS if low <= number <= high]
        return st.one_of(st.integers(0, 3), st.sampled_from(odd), st.integers(low, high))
    match field.type:
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return st.one_of(st.sampled_from((0.0, -1.0, 1.0, float("nan"), float("inf"), 1e308)), st.floats())
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_STRING:
            return st.one_of(
                st.sampled_from(("", "model", "../..", "a" * 64, "0" * 32, "\x00", "é" * 300, "rzzzzzzzzzzzz")),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            )
        case FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.sampled_from((b"", bytes(32), b"\xff" * 33)), st.binary(max_size=64))
        case _:
            raise NotImplementedError(f"{field.full_name}: no strategy for protobuf type {field.type}")


def _leave(_: Message) -> None:
    """Leave the field empty, because the message is deep enough."""
