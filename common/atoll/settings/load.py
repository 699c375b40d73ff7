"""Parse and validate the text of a settings file into its root section."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from atoll.settings.describe import allowed, choices_of, section_of
from atoll.settings.errors import Problem, SettingsFileError
from atoll.settings.lines import key_lines, line_of
from atoll.settings.section import Section, SectionProblems

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

MAX_FILE_BYTES = 256 * 1024

Root = TypeVar("Root", bound=Section)


Tables = Mapping[str, Any]
"""A file's tables before they are validated."""


def parse(
    data: bytes | str, root: type[Root], file: str, complete: Callable[[Tables], Tables] = lambda tables: tables
) -> Root:
    """Read and validate a file.

    Args:
        data: the file's content, UTF-8 TOML, at most 256 KiB.
        root: section class of the whole file.
        file: its name, for messages only.
        complete: adds values that the file leaves to another source.

    Raises:
        SettingsFileError: lists every problem: file, line, key, value and what is allowed.
    """
    text = _decode(data, file)
    try:
        written = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a plain ValueError: a number with thousands of digits
        raise SettingsFileError(file, (Problem("", f"not TOML: {error}"),)) from None
    tables = complete(written)
    try:
        return root.model_validate(tables)
    except ValidationError as error:
        raise described(error, root, tables, file, key_lines(text)) from None


def described(
    error: ValidationError, root: type[Section], tables: Mapping[str, object], file: str, lines: dict[str, int]
) -> SettingsFileError:
    """The error to raise for tables that pydantic refuses: every problem, in the order of its line.

    Args:
        error: what pydantic found.
        root: section class of the tables.
        tables: what was validated.
        file: the name of their source, for the messages.
        lines: dotted key → line; empty for tables that do not come from a file.
    """
    problems = {problem: None for item in _root_causes(error) for problem in _problems(item, root, tables, lines)}
    return SettingsFileError(file, tuple(sorted(problems, key=lambda item: item.line or 0)))


def _decode(data: bytes | str, file: str) -> str:
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsFileError(file, (Problem("", f"{len(raw)} bytes; allowed are at most {MAX_FILE_BYTES}"),))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsFileError(
            file, (Problem("", f"not UTF-8 text: byte {error.start} is {raw[error.start]:#x}"),)
        ) from None


def _root_causes(error: ValidationError) -> list[ErrorDetails]:
    """The errors, without defaults that could not be computed because the key on which they depend is wrong."""
    return [item for item in error.errors() if item["type"] != "default_factory_not_called"]


def _problems(
    item: ErrorDetails, root: type[Section], tables: Mapping[str, object], lines: dict[str, int]
) -> Iterator[Problem]:
    path = [str(part) for part in item["loc"]]
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, SectionProblems):
        found = [([*path, *key.split(".")] if key else path, message) for key, message in cause.problems]
    else:
        found = [(path, _message(item, root, path))]
    for place, message in found:
        key = ".".join(place)
        yield Problem(key, message, _value(tables, place), line_of(lines, key))


def _message(item: ErrorDetails, root: type[Section], path: list[str]) -> str:
    section, field = _locate(root, path)
    if item["type"] == "extra_forbidden":
        return _unknown(root, path, section)
    if field is None:
        return item["msg"]
    if item["type"] == "missing":
        needed = f"a section with {_required_keys(field)}" if section_of(field) else allowed(field)
        return f"is missing; needed is {needed}"
    choices = choices_of(field)
    verb = "are" if choices else "is"
    return f"allowed {verb} {allowed(field)}{_did_you_mean(item['input'], choices)}"


def _locate(root: type[Section], path: list[str]) -> tuple[type[Section], FieldInfo | None]:
    """The section that contains the last part of ``path``, and the field if the section has it."""
    section = root
    for part in path[:-1]:
        inner = section.model_fields.get(part)
        section = (section_of(inner) if inner else None) or section
    return section, section.model_fields.get(path[-1])


def _unknown(root: type[Section], path: list[str], section: type[Section]) -> str:
    known = list(section.model_fields)
    of_sections = any(section_of(field) for field in root.model_fields.values())
    kind = "section" if len(path) == 1 and of_sections else "key"
    elsewhere = [name for name, field in root.model_fields.items() if _has(field, path[-1])]
    if suggestion := _did_you_mean(path[-1], tuple(known)):
        return f"no such {kind}{suggestion}"
    if elsewhere:
        return f"no such {kind}; did you mean {' or '.join(f'[{name}] {path[-1]}' for name in elsewhere)}?"
    return f"no such {kind}; allowed are {', '.join(known)}"


def _has(field: FieldInfo, key: str) -> bool:
    section = section_of(field)
    return section is not None and key in section.model_fields


def _did_you_mean(found: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(found).lower(), known, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _required_keys(field: FieldInfo) -> str:
    section = section_of(field)
    return ", ".join(name for name, inner in section.model_fields.items() if inner.is_required()) if section else ""


def _value(tables: Mapping[str, object], place: list[str]) -> str:
    found: object = tables
    for part in place:
        if not isinstance(found, Mapping) or part not in found:
            return ""
        found = found[part]
    if isinstance(found, Mapping):
        return ""
    try:
        return json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(found)
