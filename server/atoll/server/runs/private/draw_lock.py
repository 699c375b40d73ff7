"""Keeps secret draws apart from the draws of other runs."""

from __future__ import annotations

from collections.abc import Callable


class DrawLock:
    """Lets runs draw one after another where a draw must stay secret.

    A *secret* draw is one that the privacy accounting of a run relies on (``jobs.refusals.has_secret_draw``). While its
    members are at work, no other run draws. The participants missing from another run's draw would reveal them, and a
    draw without them would depend on the secret draw, against the accounting's assumption. A secret draw also waits
    until no other run is drawing.

    Args:
        secret_round: returns a run, other than the given one, that has a live round with a secret draw, or "".
        changed: called when another run may be able to draw.
    """

    def __init__(self, secret_round: Callable[[str], str], changed: Callable[[], None]) -> None:
        self._secret_round = secret_round
        self._changed = changed
        self._drawing: dict[str, bool] = {}

    def may_begin(self, run: str, *, secret: bool) -> bool:
        """Whether the run may draw now."""
        others = [theirs for other, theirs in self._drawing.items() if other != run]
        return not (any(others) or (secret and others) or self._secret_round(run))

    def begin(self, run: str, *, secret: bool) -> None:
        """Take the lock for the run, until ``end``."""
        self._drawing[run] = secret

    def end(self, run: str) -> None:
        """The draw is over: its members are in the run's state, or it was given up."""
        if self._drawing.pop(run, None) is not None:
            self._changed()

    def waits_for(self, run: str) -> str:
        """The other run that keeps this one from drawing, and the remedy; "" if none does."""
        secret = self._secret_round(run)
        return secret and (
            f"private run {secret} is in a round; its draw must stay secret until that round ends. "
            "A shorter straggler.report_window_s of that run shortens the wait"
        )
