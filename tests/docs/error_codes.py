"""The table of error codes in docs/protocol.md from the source; ``python -m tests.docs.error_codes`` writes it."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from atoll.server.errors import ServerError
from atoll.server.rpc.errors import status_of_kind
from atoll.server.stores.errors import RecordMissingError
from atoll.wire.status import Recovery

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocol.md"
BEGIN, END = "<!-- errors: begin -->\n", "<!-- errors: end -->\n"
_CODE = re.compile(r"[a-z]+\.[a-z_]+")
_LOCAL = ("demo",)  # areas whose errors never leave the command that raised them
_FOURTH = 3  # the position of retry_after_s among the arguments


@dataclass(frozen=True)
class Entry:
    """One place in the source that raises a code."""

    code: str
    status: str
    recovery: str
    meaning: str


_DETAILS = (  # codes that have no error class of their own
    Entry("server.internal", "INTERNAL", "repeat", "An error of the server's own; its log says which"),
    Entry("wire.invalid", "INVALID_ARGUMENT", "change", "Something breaks the wire contract, named in the message"),
)


@cache
def entries() -> tuple[Entry, ...]:
    """Every code that the server's source names, once for each status and recovery that it comes with, by code."""
    found = {_key(entry): entry for entry in _DETAILS}
    for path in _sources():
        for entry in _in_module(path):
            if entry.code.split(".", maxsplit=1)[0] not in _LOCAL:
                found.setdefault(_key(entry), entry)
    return tuple(found[key] for key in sorted(found))


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry.code, entry.status, entry.recovery


def table() -> str:
    """The entries as Markdown."""
    rows = [f"| `{entry.code}` | {entry.status} | {entry.recovery} | {entry.meaning} |" for entry in entries()]
    return "\n".join(["| code | status | recovery | meaning |", "|---|---|---|---|", *rows]) + "\n"


def page_with(text: str) -> str:
    """The page with its table replaced."""
    page = PAGE.read_text()
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start] + text + page[stop:]


def unresolved() -> list[str]:
    """Errors whose code is composed where they are raised, so that the table cannot name it."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _sources()
        for module, tree in [_parsed(path)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and _CODE.fullmatch(_template(node.args[0]))
        if isinstance(node.args[0], ast.JoinedStr) and _class_of(module, node.func) is not None
    ]


def _sources() -> list[Path]:
    """The server's modules; Alembic's scripts can be imported by Alembic alone."""
    return [path for path in sorted((ROOT / "server").rglob("*.py")) if "migrations" not in path.parts]


@cache
def _parsed(path: Path) -> tuple[ModuleType, ast.Module]:
    name = ".".join(path.relative_to(ROOT / "server").with_suffix("").parts)
    return importlib.import_module(name), ast.parse(path.read_text())


def _in_module(path: Path) -> Iterator[Entry]:
    module, tree = _parsed(path)
    for owner in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in ast.walk(owner):
            if isinstance(node, ast.Call):
                kind = _kind(module, node, owner)
                code = "" if kind is None else _code_of(node, kind)
                if kind is not None and code:
                    yield _entry(code, kind, node)
            elif isinstance(owner, ast.ClassDef) and (code := _code_attribute(node)):
                yield _entry(code, getattr(module, owner.name), None)


def _entry(code: str, kind: type[ServerError], call: ast.Call | None) -> Entry:
    meaning = (_message(call, code) if call is not None else "") or _summary(kind)
    recovery = _recovery(kind, call).name.lower().replace("_", " ")
    return Entry(code, status_of_kind(kind).name, recovery, meaning)


def _code_of(node: ast.Call, kind: type[ServerError]) -> str:
    """The code among the call's arguments: the first of an error class, any of a function that makes an error."""
    if kind is RecordMissingError and isinstance(node.args[0], ast.Constant):
        return f"{_template(node.args[0])}.missing"
    for argument in node.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and _CODE.fullmatch(argument.value):
            return argument.value
    return ""


def _code_attribute(node: ast.AST) -> str:
    """The value of ``code = "..."`` in a class, annotated or not."""
    if isinstance(node, ast.AnnAssign):
        target: ast.expr = node.target
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return ""
    value = node.value
    named = isinstance(target, ast.Name) and target.id == "code"
    return value.value if named and isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _recovery(kind: type[ServerError], call: ast.Call | None) -> Recovery:
    """Return the caller's recovery, as ``ServerError`` derives it."""
    given = {} if call is None else {keyword.arg: keyword.value for keyword in call.keywords}
    stated = given.get("recovery")
    waits = "retry_after_s" in given or (call is not None and len(call.args) > _FOURTH)
    arguments: dict[str, Any] = {"retry_after_s": 1.0 if waits else None}
    if isinstance(stated, ast.Attribute):
        arguments["recovery"] = Recovery[stated.attr]
    made = kind.__new__(kind)
    ServerError.__init__(made, "a.b", "message", **arguments)
    return made.detail.recovery


def _kind(module: ModuleType, node: ast.Call, owner: ast.AST) -> type[ServerError] | None:
    """The error class that is called, that a called function gives, or whose ``__init__`` calls its base's; or None."""
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "__init__" and isinstance(owner, ast.ClassDef):
        return _error_class(getattr(module, owner.name, None))
    if isinstance(called, ast.Attribute) and isinstance(owner, ast.ClassDef) and _is_self(called.value):
        method = getattr(getattr(module, owner.name, None), called.attr, None)
        return _error_class(method)
    return _class_of(module, called)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _class_of(module: ModuleType, called: ast.expr) -> type[ServerError] | None:
    """The error class behind ``Name(...)`` or ``module.Name(...)``, or that such a function gives."""
    if isinstance(called, ast.Name):
        return _error_class(getattr(module, called.id, None))
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        holder = getattr(module, called.value.id, None)
        return _error_class(getattr(holder, called.attr, None)) if isinstance(holder, ModuleType) else None
    return None


def _error_class(found: object) -> type[ServerError] | None:
    if isinstance(found, FunctionType):
        found = found.__globals__.get(str(found.__annotations__.get("return")))
    return found if isinstance(found, type) and issubclass(found, ServerError) else None


def _message(node: ast.Call, code: str) -> str:
    """The argument after the code as it is written, with an ellipsis for each value; empty if there are only values."""
    places = [place for place, argument in enumerate(node.args) if _template(argument) == code]
    if not places or len(node.args) == places[0] + 1:
        return ""
    text = _template(node.args[places[0] + 1], "…").replace("…...", "…")
    return _one_line(text) if re.search(r"[a-z]{3}", text) else ""


def _template(argument: ast.expr, value: str = "x") -> str:
    """A string as it is written, with ``value`` for each value in it; empty for anything else."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else value for part in argument.values]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _summary(kind: type[ServerError]) -> str:
    return _one_line((kind.__doc__ or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split()).rstrip(".")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tests.docs.error_codes", description=__doc__).parse_args()
    PAGE.write_text(page_with(table()))
