"""How rounds and times are written for people."""

from __future__ import annotations

from atoll.server.control.values import Round


def round_label(item: Round) -> str:
    """``7`` for the seventh round, ``7.2`` for its second attempt, ``e7`` if it evaluates."""
    again = f".{item.attempt + 1}" if item.attempt else ""
    return f"{'e' if item.kind == 'evaluate' else ''}{item.round + 1}{again}"


def duration(seconds: float) -> str:
    """``340 ms``, ``4.2 s``, ``3m 20s``, ``2h 5m``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"
