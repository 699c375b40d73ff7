"""The table of error codes in docs/protocol.md from the source; ``python -m tests.docs.error_codes`` writes it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import get_type_hints

from atoll.server.errors import ServerError
from atoll.server.rpc.errors import status_of_kind

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocol.md"
BEGIN, END = "<!-- errors: begin -->\n", "<!-- errors: end -->\n"
_CODE = re.compile(r"[a-z]+\.[a-z_]+")
_DETAILS = {  # codes that no class of their own stands behind
    "server.internal": ("INTERNAL", "An error of the server's own; its log says which"),
    "wire.invalid": ("INVALID_ARGUMENT", "Something breaks the wire contract; the message names the value"),
}
_LOCAL = ("demo",)  # areas whose errors never leave the command that raised them


@dataclass(frozen=True)
class Entry:
    """One way in which a code comes about."""

    code: str
    status: str
    meaning: str


def entries() -> list[Entry]:
    """Every code that the server's source names, once, by code."""
    found = {code: Entry(code, *rest) for code, rest in _DETAILS.items()}
    for path in sorted((ROOT / "server").rglob("*.py")):
        for entry in _in_module(path):
            if entry.code.split(".", maxsplit=1)[0] not in _LOCAL:
                found.setdefault(entry.code, entry)
    return [found[code] for code in sorted(found)]


def table() -> str:
    """The entries as Markdown."""
    rows = [f"| `{entry.code}` | {entry.status} | {entry.meaning} |" for entry in entries()]
    return "\n".join(["| code | status | meaning |", "|---|---|---|", *rows]) + "\n"


def page_with(text: str) -> str:
    """The page with its table replaced."""
    page = PAGE.read_text()
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start] + text + page[stop:]


def _in_module(path: Path) -> Iterator[Entry]:
    tree = ast.parse(path.read_text())
    name = ".".join(path.relative_to(ROOT / "server").with_suffix("").parts)
    for owner in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in ast.walk(owner):
            if isinstance(node, ast.Call) and (code := _code_of(node)):
                kind = _kind(name, node, owner)
                if kind is not None:
                    yield Entry(code, status_of_kind(kind).name, _message(node) or _summary(kind))
            elif isinstance(owner, ast.ClassDef) and (code := _code_attribute(node)):
                kind = getattr(importlib.import_module(name), owner.name)
                yield Entry(code, status_of_kind(kind).name, _summary(kind))


def _code_of(node: ast.Call) -> str:
    first = node.args[0] if node.args else None
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return text if _CODE.fullmatch(text) else ""


def _code_attribute(node: ast.AST) -> str:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "code":
        value = node.value
        return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
    return ""


def _kind(module: str, node: ast.Call, owner: ast.AST) -> type[ServerError] | None:
    """The error class that is called, that a called function gives, or whose ``__init__`` calls its base's; or None."""
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "__init__" and isinstance(owner, ast.ClassDef):
        name = owner.name
    else:
        name = called.id if isinstance(called, ast.Name) else ""
    kind = getattr(importlib.import_module(module), name, None)
    if isinstance(kind, FunctionType):
        kind = get_type_hints(kind).get("return")
    return kind if isinstance(kind, type) and issubclass(kind, ServerError) else None


def _message(node: ast.Call) -> str:
    """The message as it is written, with an ellipsis for each value; empty if there are only values."""
    message = node.args[1] if len(node.args) > 1 else None
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return _one_line(message.value)
    if isinstance(message, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in message.values]
        text = "".join(str(part) for part in parts).replace("…...", "…")
        return _one_line(text) if re.search(r"[a-z]{3}", text) else ""
    return ""


def _summary(kind: type[ServerError]) -> str:
    return _one_line((kind.__doc__ or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split()).rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))
