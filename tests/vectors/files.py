"""The files of ``protos/vectors``, as the code gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.vectors import digests, encodings, joining, messages

FOLDER = Path(__file__).parents[2] / "protos" / "vectors"

_MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "layout.json": digests.layouts,
    "blob.json": digests.blobs,
    "update.json": digests.updates,
    "encodings.json": encodings.encodings,
    "join-token.json": lambda: joining.tokens((FOLDER / "ca.pem").read_bytes()),
    "error.json": messages.errors,
    "invitation.json": messages.invitations,
    "upload.json": messages.uploads,
    "report.json": messages.reports,
}


def contents() -> dict[str, str]:
    """Text of each file by its name."""
    return {name: _text(make()) for name, make in _MAKERS.items()}


def stored(name: str) -> dict[str, Any]:
    """What the checked-in file says."""
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def _text(vectors: dict[str, Any]) -> str:
    """JSON with each case on a line of its own."""
    return "{\n" + ",\n".join(f"{_json(key)}: {_value(value)}" for key, value in vectors.items()) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(f" {_json(item)}" for item in value) + "\n]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
