"""Load an exported model for MLflow: the tensors of a safetensors file as arrays. Needs only numpy.

This file is copied into the model's folder, where it must work without Atoll.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Tensors:
    """The tensors of a model by name; bfloat16 appears as its 16 bits (uint16), which numpy does not have."""

    def __init__(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        self.tensors = tensors

    def predict(self, model_input: object = None, params: object = None) -> dict[str, npt.NDArray[Any]]:
        """All tensors; the input is ignored, because Atoll does not know the model's code."""
        del model_input, params
        return self.tensors


def _load_pyfunc(path: str) -> Tensors:
    """Entry point of ``mlflow.pyfunc.load_model``, with the path of the safetensors file."""
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    body = memoryview(content)[start:]
    return Tensors({name: _array(entry, body) for name, entry in header.items()})


def _array(entry: dict[str, Any], body: memoryview) -> npt.NDArray[Any]:
    first, last = entry["data_offsets"]
    return np.frombuffer(body[first:last], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
