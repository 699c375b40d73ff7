"""When a run may draw, so that draws which must be secret stay so."""

from __future__ import annotations

from collections.abc import Callable


class DrawLock:
    """Lets runs draw one after another where a draw must stay secret.

    A *secret* draw is one that a private run's account counts on (``jobs.refusals.has_secret_draw``). While its
    members are at work nobody else draws: whom another run could not get would tell who they are, and a draw that
    leaves them out is not independent of theirs, as the account assumes. Nor is it made while another run is choosing.

    Args:
        secret_round: a run other than the given one that has a round of a secret draw in work, or "".
        changed: called when another run may have its turn now.
    """

    def __init__(self, secret_round: Callable[[str], str], changed: Callable[[], None]) -> None:
        self._secret_round = secret_round
        self._changed = changed
        self._choosing: dict[str, bool] = {}

    def may_begin(self, run: str, *, secret: bool) -> bool:
        """Whether the run may choose its members now."""
        others = [theirs for other, theirs in self._choosing.items() if other != run]
        return not (any(others) or (secret and others) or self._secret_round(run))

    def begin(self, run: str, *, secret: bool) -> None:
        """The run chooses its members, until ``end``."""
        self._choosing[run] = secret

    def end(self, run: str) -> None:
        """The run's members are in its state, or it has none."""
        if self._choosing.pop(run, None) is not None:
            self._changed()

    def waits_for(self, run: str) -> str:
        """Which run's round keeps this one from drawing, and what to do about it; "" if none does."""
        secret = self._secret_round(run)
        return secret and (
            f"run {secret} has drawn in secret (privacy), and nobody else draws until its round is over: "
            "a shorter straggler.report_window_s of that run shortens the wait"
        )
