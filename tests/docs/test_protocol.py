"""docs/protocol.md lists every error code that the server can send, and no other."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[a-z]+\.[a-z_]+")


def codes_in_source() -> set[str]:
    found = set()
    for path in (ROOT / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found |= _code_of_call(node)
            if isinstance(node, ast.AnnAssign | ast.Assign):
                found |= _code_attribute(node)
    return found


def _code_of_call(node: ast.Call) -> set[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    if (name.endswith("Error") or name in {"__init__", "ErrorDetail"}) and isinstance(first, ast.Constant):
        return {first.value} if isinstance(first.value, str) and CODE.fullmatch(first.value) else set()
    return set()


def _code_attribute(node: ast.AnnAssign | ast.Assign) -> set[str]:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    named = any(isinstance(target, ast.Name) and target.id == "code" for target in targets)
    if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return {node.value.value}
    return set()


def test_every_error_code_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", (ROOT / "docs" / "protocol.md").read_text(), re.M))
    assert codes_in_source() == documented
