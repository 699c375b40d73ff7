"""The silo's round in the federation, as kept in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.client import RoundKey


@dataclass
class CurrentRound:
    """The round whose inner steps are running, or ran last.

    Attributes:
        run, round, attempt: key of the round; the run is empty before the first round.
        first_step: steps run before it.
        first_tokens: tokens counted before it.
    """

    run: str = ""
    round: int = 0
    attempt: int = 0
    first_step: int = 0
    first_tokens: int = 0

    @property
    def key(self) -> RoundKey:
        """Key of the round."""
        return RoundKey(self.run, self.round, self.attempt)

    def begin(self, key: RoundKey, step: int, tokens: int) -> None:
        """Begin a round."""
        self.run, self.round, self.attempt = key.run, key.round, key.attempt
        self.first_step, self.first_tokens = step, tokens

    def state(self) -> Mapping[str, int | str]:
        """Return the values for a checkpoint."""
        return {
            "run": self.run,
            "round": self.round,
            "attempt": self.attempt,
            "first_step": self.first_step,
            "first_tokens": self.first_tokens,
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the values of a checkpoint."""
        self.run, self.round, self.attempt = str(state["run"]), int(str(state["round"])), int(str(state["attempt"]))
        self.first_step, self.first_tokens = int(str(state["first_step"])), int(str(state["first_tokens"]))
