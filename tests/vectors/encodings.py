"""Vectors of encodings: payloads, the values that they stand for, and payloads that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.wire.encoding import Encoding, FloatArray, decode, encode

_VALUES = [127.0, -63.5, 0.5, 1.5, 0.0, 1.0, -1.0, 1e-3]
_LONG = [float(index) for index in range(130)]  # two blocks, the second of two elements
_REFUSED = (
    (Encoding.INT8_BLOCK, 1, "0000803f", "too short: the integer is missing"),
    (Encoding.INT8_BLOCK, 1, "0000803f7f00", "too long"),
    (Encoding.INT8_BLOCK, 1, "0000803f80", "-128 is no integer of this encoding"),
    (Encoding.INT8_BLOCK, 1, "000080bf01", "a negative scale"),
    (Encoding.INT8_BLOCK, 1, "0000008000", "the scale is -0"),
    (Encoding.INT8_BLOCK, 1, "0000c07f01", "the scale is NaN"),
    (Encoding.INT4_BLOCK, 1, "0000803f08", "-8 is no integer of this encoding"),
    (Encoding.INT4_BLOCK, 1, "0000803f11", "the padding is not 0"),
    (Encoding.FLOAT16, 2, "0000", "too short: two elements have four bytes"),
)


def encodings() -> dict[str, Any]:
    """Every encoding. Senders may choose other scales of quantised blocks; readers decode bit for bit."""
    return {
        "about": "values, encoded, are payload; payload, decoded, is decoded, as float32 (float64 for encoding 2)",
        "cases": [_case(encoding, values) for encoding in Encoding for values in (_VALUES, _LONG)],
        "refused": [
            {"encoding": int(encoding), "count": count, "payload": payload, "why": why}
            for encoding, count, payload, why in _REFUSED
        ],
    }


def floats(values: list[float], encoding: Encoding) -> FloatArray:
    """The values as ``encode`` takes and ``decode`` gives them."""
    return np.array(values, np.float64) if encoding is Encoding.FLOAT64 else np.array(values, np.float32)


def _case(encoding: Encoding, values: list[float]) -> dict[str, Any]:
    payload = encode(floats(values, encoding), encoding).tobytes()
    return {
        "encoding": int(encoding),
        "name": encoding.name.lower(),
        "values": values,
        "payload": payload.hex(),
        "decoded": [float(value) for value in decode(payload, encoding, len(values))],
    }
