"""Text from another party, made safe for terminals, logs and reports.

A reason, a label or a metric's name may contain control characters that clear a screen or set a window's title
(ECMA-48), a line break that forges a log line, or marks that reverse the order of letters (Unicode TR 36, 3.1). Each
process escapes text as it receives it: the server escapes text from participants, the operator's commands and
participants escape text from servers. So databases, logs, tables, prompts and pages contain printable text only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text on one line, with characters that do not print escaped (``\x1b``, ``\u202e``).

    Args:
        text: as received.
        lines: keep line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if _prints(char) or (lines and char == "\n") else _escaped(char) for char in text)


def make_printable(message: Message, *, as_they_are: Collection[str] = (), lines: Collection[str] = ()) -> None:
    """Make every text of a protobuf message printable, in place, including nested messages and maps.

    Args:
        message: as received.
        as_they_are: names of fields that stay unchanged.
        lines: names of fields that keep their line breaks.
    """
    for field, value in message.ListFields():
        if field.name in as_they_are:
            continue
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            _remake(value, kind)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else (value,):
                make_printable(one, as_they_are=as_they_are, lines=lines)
        elif field.type == FieldDescriptor.TYPE_STRING:
            keep = field.name in lines
            if field.is_repeated:
                value[:] = [printable(one, lines=keep) for one in value]
            elif not value.isprintable():
                setattr(message, field.name, printable(value, lines=keep))


def _remake(figures: Any, entry: Descriptor) -> None:
    """Make a map's keys printable, and its values if they are texts or messages."""
    name, kind = entry.fields_by_name["key"], entry.fields_by_name["value"].type
    if kind == FieldDescriptor.TYPE_MESSAGE:
        for one in figures.values():
            make_printable(one)
        return
    if kind == FieldDescriptor.TYPE_STRING:
        for key, text in list(figures.items()):
            figures[key] = printable(text)
    if name.type == FieldDescriptor.TYPE_STRING:
        for key in [one for one in figures if not one.isprintable()]:
            figures[printable(key)] = figures.pop(key)


def _prints(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
