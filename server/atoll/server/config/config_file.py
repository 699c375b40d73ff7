"""Merges ``server.toml`` and the command line's options into one configuration, validated whole."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from atoll.server.config.config import ServerConfig
from atoll.server.errors import InvalidRequestError
from atoll.settings.lines import key_lines, line_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

C = TypeVar("C", bound=BaseModel)
MAX_FILE_BYTES = 256 * 1024
_SHOWN_CHARS = 60
_PASSWORD = re.compile(
    r"(?<=:)[^:/@]*(?=@)|(?<=[?&])[^=&]*(?:password|token|key|sig|signature|credential)=[^&]*", re.IGNORECASE
)
"""Within a URL."""


def load_config(options: Mapping[str, Any], file: Path | None = None) -> ServerConfig:
    """Load the server's configuration. Arguments and errors as for ``load_settings``."""
    return load_settings(ServerConfig, options, file)


def load_settings(kind: type[C], options: Mapping[str, Any], file: Path | None = None) -> C:
    """Load the configuration of a process.

    Args:
        kind: the configuration class of the process.
        options: the command line's options, which take precedence over the file.
        file: TOML with the keys of ``kind``; a relative ``data`` is relative to the file.

    Raises:
        InvalidRequestError: lists every problem: the option, or file, line and key; the value; and what is allowed.
    """
    text = "" if file is None else _read(file)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # plain ValueError: a number with thousands of digits
        raise _invalid([f"{file}: not TOML: {error}"]) from None
    if file is not None and isinstance(tables.get("data"), str):
        tables["data"] = file.parent / tables["data"]
    try:
        return kind.model_validate({**tables, **options})
    except ValidationError as error:
        lines = key_lines(text)
        raise _invalid([_described(item, options, file, lines, kind) for item in error.errors()]) from None


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise _invalid([f"{file}: allowed are at most {MAX_FILE_BYTES} bytes"])
        return raw.decode("utf-8")
    except OSError as error:
        raise _invalid([f"{file} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise _invalid([f"{file}: not UTF-8 text at byte {error.start}"]) from None


def _described(
    item: ErrorDetails, options: Mapping[str, Any], file: Path | None, lines: dict[str, int], kind: type[BaseModel]
) -> str:
    path = [str(part) for part in item["loc"]]
    message = "; ".join(_unknown(path, kind)) if item["type"] == "extra_forbidden" else item["msg"]
    message = message.removeprefix("Value error, ")
    if not path:
        return message
    shown = _PASSWORD.sub("***", str(item["input"]))[:_SHOWN_CHARS]
    value = "" if item["type"] == "missing" else f"{shown!r}: "
    if file is None or path[0] in options:
        return f"--{'-'.join(path).replace('_', '-')} {value}{message}"
    line = line_of(lines, ".".join(path))
    return f"{file}{f':{line}' if line else ''}: {'.'.join(path)} = {value}{message}"


def _unknown(path: list[str], section: type[BaseModel]) -> Iterator[str]:
    for part in path[:-1]:
        kind = section.model_fields[part].annotation if part in section.model_fields else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = kind
    yield "no such key"
    if close := difflib.get_close_matches(path[-1].lower(), list(section.model_fields), n=1):
        yield f'did you mean "{close[0]}"?'
    else:
        yield f"known are {', '.join(section.model_fields)}"


def _invalid(problems: list[str]) -> InvalidRequestError:
    return InvalidRequestError("server.config", "\n".join(problems), "`docs/server-reference.md` lists every key")
