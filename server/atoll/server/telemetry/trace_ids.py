"""Ids of traces and spans, derived from run, round and participant, so that a restarted server uses the same ones."""

from __future__ import annotations

from blake3 import blake3

from atoll.server.rounds import RoundKey


def trace_id(run: str, key: RoundKey) -> int:
    """128 bits, never 0: the trace of one attempt at a round."""
    return _number(f"atoll trace {run} {key.round}.{key.attempt}", 16)


def span_id(run: str, key: RoundKey, participant: str = "") -> int:
    """64 bits, never 0: the span of the attempt, or of a participant's part in it."""
    return _number(f"atoll span {run} {key.round}.{key.attempt} {participant}", 8)


def traceparent(run: str, key: RoundKey, participant: str, *, sampled: bool) -> str:
    """W3C trace context (level 1) whose parent is the participant's part."""
    return f"00-{trace_id(run, key):032x}-{span_id(run, key, participant):016x}-{int(sampled):02x}"


def _number(text: str, size: int) -> int:
    return int.from_bytes(blake3(text.encode()).digest(size)) or 1
