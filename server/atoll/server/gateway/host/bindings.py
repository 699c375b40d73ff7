"""The participants that an aggregator may act for: those whose join token named it."""

from __future__ import annotations

from collections import OrderedDict

from atoll.server.errors import ForbiddenError
from atoll.server.stores import Reader, participants
from atoll.wire.status import Recovery

_CACHED = 65_536


class Bindings:
    """Looks up participants' bindings and caches them, since a binding never changes."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: OrderedDict[str, str] = OrderedDict()

    async def check(self, gateway: str, participant: str) -> None:
        """Check that a participant is bound to the gateway that acts for it.

        Raises:
            ForbiddenError: if it is not.
        """
        through = self._known.get(participant)
        if through is None:
            row = await self._reader.run(lambda connection: participants.get(connection, participant))
            through = "" if row is None else row.through
            if row is not None:
                self._remember(participant, through)
        if through != gateway:
            bound = f"aggregator {through}" if through else "the server"
            raise ForbiddenError(
                "gateway.binding",
                f"participant {participant} was enrolled for {bound}, not for aggregator {gateway}",
                f"enrol again with a join token made with --through {gateway}, or connect to the server itself",
                recovery=Recovery.ENROL,
            )

    def _remember(self, participant: str, through: str) -> None:
        self._known[participant] = through
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
