"""Types of the values in a ``config.json`` that our blocks read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_WHOLE = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "head_dim", "num_local_experts", "num_experts_per_tok"),
)
_SCALING_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def wrong_types(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield each value of another type than its key has, with what is allowed. Missing values and null are none."""
    for key in _WHOLE:
        if (value := config.get(key)) is not None and (type(value) is not int or value < 1):
            yield f"{key} = {value!r}: allowed is a whole number from 1"
    yield from _numbers(config, ("rms_norm_eps", "rope_theta"), "")
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            yield from _numbers(value, _SCALING_NUMBERS, f"{key}.")
        elif value is not None:
            yield f"{key} = {value!r}: allowed is an object"
    if not isinstance(tied := config.get("tie_word_embeddings"), bool | None):
        yield f"tie_word_embeddings = {tied!r}: allowed is true or false"


def _numbers(table: Mapping[str, Any], keys: tuple[str, ...], prefix: str) -> Iterator[str]:
    for key in keys:
        value = table.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            yield f"{prefix}{key} = {value!r}: allowed is a number above 0"
