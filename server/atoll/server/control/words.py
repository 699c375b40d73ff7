"""Rounds and times as text for display."""

from __future__ import annotations

import re

from atoll.server.control.runs import RoundSummary

_LABEL = re.compile(r"e?(?P<round>[1-9][0-9]{0,8})(\.(?P<attempt>[1-9][0-9]{0,8}))?")


def round_label(item: RoundSummary) -> str:
    """``7`` for the seventh round, ``7.2`` for its second attempt, ``e7`` if it evaluates."""
    again = f".{item.attempt + 1}" if item.attempt else ""
    return f"{'e' if item.kind == 'evaluate' else ''}{item.round + 1}{again}"


def kind_words(item: RoundSummary) -> str:
    """``train`` or ``evaluate``; ``train 2/3`` for a round over the second of three fragments of the model."""
    return item.kind if item.fragment is None else f"{item.kind} {item.fragment + 1}/{item.fragments}"


def fragment_words(item: RoundSummary) -> str:
    """``fragment 2 of 3``; empty for a round over the whole model."""
    return "" if item.fragment is None else f"fragment {item.fragment + 1} of {item.fragments}"


def parse_round_label(text: str) -> tuple[int, int | None]:
    """Round and attempt, both from 0, of a label by ``round_label``; the attempt is None if the label has none.

    Raises:
        ValueError: for anything else.
    """
    found = _LABEL.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} names no round: write 7, or 7.2 for its second attempt")
    attempt = found["attempt"]
    return int(found["round"]) - 1, int(attempt) - 1 if attempt else None


def duration(seconds: float) -> str:
    """``340 ms``, ``4.2 s``, ``3m 20s``, ``2h 5m``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"
