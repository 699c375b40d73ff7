"""For how many released rounds of a run each participant has sent an update, counted as rounds are released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.server.sampling import Participation
from atoll.server.stores import Reader, rounds


@dataclass
class _Counted:
    """What is counted of the rounds before ``before``."""

    before: int = 0
    known: dict[str, Participation] = field(default_factory=dict)


class Participations:
    """Reads the members of each released round once: all of them at a run's first draw, then those of its new rounds.

    What a round's member counts as never changes once the round is released: a run with a bound on participation is
    private, and takes no late reports (``jobs.refusals``).
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._counted: dict[str, _Counted] = {}

    async def before(self, run: str, round_number: int) -> Mapping[str, Participation]:
        """Participants that have sent an update for a train round of the run before this one, which is to be drawn.

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
        """The run has ended."""
        self._counted.pop(run, None)
