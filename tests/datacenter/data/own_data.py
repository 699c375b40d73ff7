"""User-supplied data, for the tests of ``data.source = "module:function"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atoll.datacenter.data import Rows
from atoll.datacenter.data.packing import Ints


def unnamed(_settings: Mapping[str, object], _sequence: int, _split: str) -> list[int]:
    return [1, 2, 3]


def in_float64(_settings: Mapping[str, object], _sequence: int, _split: str) -> object:
    return _of(lambda indices: Rows(np.zeros((len(indices), 3)), np.zeros(len(indices), np.int64)))  # type: ignore[arg-type]  # the mistake


def doubled(_settings: Mapping[str, object], _sequence: int, _split: str) -> object:
    return _of(lambda _indices: Rows(np.zeros((2, 3), np.int64), np.zeros(1, np.int64)))


def empty(_settings: Mapping[str, object], _sequence: int, _split: str) -> object:
    return _of(lambda _indices: Rows(np.zeros((0, 3), np.int64), np.zeros(0, np.int64)), 0)


def _of(rows: Callable[[Ints], Rows], count: int = 1) -> Any:
    class Own:
        name, digest = "own", "own"

        def __len__(self) -> int:
            return count

        def rows(self, indices: Ints) -> Rows:
            return rows(indices)

    return Own()


def failing(settings: Mapping[str, object], _sequence: int, _split: str) -> object:
    return settings["count"]


def beyond(settings: Mapping[str, object], sequence: int, _split: str) -> list[tuple[Any, Any]]:
    """Eight rows of counting tokens; ``settings`` say which row has a wrong token, a wrong label or another length."""
    sequence = int(str(settings.get("tokens", sequence)))
    rows: list[tuple[Any, Any]] = [([*range(sequence)], [*range(sequence)]) for _ in range(8)]
    tokens, labels = rows[int(str(settings["row"]))]
    match settings["wrong"]:
        case "token":
            tokens[3] = 64
        case "label":
            labels[2] = -1
        case "length":
            rows = [(tokens[1:], labels[1:]) for tokens, labels in rows]
        case "labels":
            rows = [(tokens, labels[1:]) for tokens, labels in rows]
        case "classes":  # one label for each row, above all tokens
            rows = [(tokens, sequence) for tokens, _ in rows]
        case "images":
            rows = [([float(token) for token in tokens], labels) for tokens, labels in rows]
        case _:
            labels[0] = -100
    return rows
