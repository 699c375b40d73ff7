"""Generate the reference page of a settings file, as Markdown, from its section classes."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.settings.describe import allowed, hint_of, section_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from atoll.settings.section import Section


def chapters(name: str, section: type[Section]) -> Iterator[str]:
    """A heading and a table for the section of this dotted name, then for those inside it."""
    yield f"## `[{name}]`\n\n{inspect.getdoc(section)}\n"
    yield "\n".join(_table(section))
    for inner, field in section.model_fields.items():
        if kind := section_of(field):
            yield from chapters(f"{name}.{inner}", kind)


def write_reference(module: str, page: str, make: Callable[[], str]) -> None:
    """Write the page that the command line of ``python -m MODULE PAGE`` names; ``page`` is its usual path."""
    target = path_argument(module, "PAGE", f"the file to write; in this repository {page}")
    target.write_text(make(), encoding="utf-8")


def path_argument(module: str, name: str, meaning: str) -> Path:
    """The one argument, a path, of ``python -m MODULE``; ``--help`` and a wrong command line end the process."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("path", metavar=name, type=Path, help=meaning)
    path: Path = parser.parse_args().path
    return path


def _table(section: type[Section]) -> Iterator[str]:
    yield "| key | meaning | allowed | default |\n|---|---|---|---|"
    for name, field in section.model_fields.items():
        cells = (f"`{name}`", field.description or "", allowed(field), _default(field))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    return hint_of(field).default or f"`{json.dumps(field.default)}`"
