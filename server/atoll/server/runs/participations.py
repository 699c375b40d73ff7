"""Counts the released rounds of a run in which each participant has taken part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.server.sampling import Participation
from atoll.server.stores import Reader, rounds


@dataclass
class _Counted:
    """Participation in the rounds before round ``before``."""

    before: int = 0
    known: dict[str, Participation] = field(default_factory=dict)


class Participations:
    """Reads the members of each released round once: all rounds at a run's first draw, then each new round.

    The status of a member never changes once its round is released: a run with a limit on participation is private
    and takes no late reports (``jobs.refusals``).
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._counted: dict[str, _Counted] = {}

    async def before(self, run: str, round_number: int) -> Mapping[str, Participation]:
        """Participation in the run's train rounds before the one to draw, by participant.

        Raises:
            ServerError: if they cannot be read.
        """
        counted = self._counted.setdefault(run, _Counted())
        if counted.before < round_number:
            found = await self._reader.run(rounds.participations, run, since=counted.before)
            for name, (times, last) in found.items():
                known = counted.known.get(name)
                counted.known[name] = Participation(times + (0 if known is None else known.times), last)
            counted.before = round_number
        return counted.known

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        self._counted.pop(run, None)
