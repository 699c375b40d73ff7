"""Stores participants' declarations at check-in, with few transactions for participants that check in often."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import Future
from functools import partial

from sqlalchemy import Connection

from atoll.server.errors import ServerError
from atoll.server.identity import DEFAULT_PROJECT, ParticipantKind
from atoll.server.runs.services import Services
from atoll.server.runs.session import Introduction
from atoll.server.stores import participants, projects
from atoll.server.stores.columns import NamedTexts

log = logging.getLogger(__name__)

KEPT = 131_072
"""Maximum number of participants without a stream whose declarations are cached (about 300 bytes each), and of
participants whose project is cached (about 150 bytes each)."""
TOGETHER_S = 5.0
"""Seconds between two transactions that store when participants without a stream were last seen."""

_Declared = tuple[int, NamedTexts]


class CheckInRecords:
    """Records check-ins. Only the event loop touches it.

    A participant with a stream is recorded at each check-in. One with unary check-ins is recorded when it declares
    something new. For its other check-ins only the time is stored, a little later, in one transaction with others.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, tuple[_Declared, participants.CheckedIn]] = OrderedDict()
        self._projects: OrderedDict[str, str] = OrderedDict()
        self._seen: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def project_of(self, participant: str) -> str:
        """The project to which a participant permanently belongs; ``default`` for one that is not enrolled."""
        found = self._projects.get(participant)
        if found is None:
            read = await self._services.reader.run(projects.of_participants, (participant,))
            if participant not in read:
                return DEFAULT_PROJECT
            found = self._projects[participant] = read[participant]
            if len(self._projects) > KEPT:
                self._projects.popitem(last=False)
        else:
            self._projects.move_to_end(participant)
        return found

    def known(self, participant: str, introduction: Introduction) -> participants.CheckedIn | None:
        """Like ``record``, for a unary check-in that declares nothing new; None for other check-ins."""
        found = self._known.get(participant) if introduction.unary else None
        if found is None or found[0] != _declared(introduction):
            return None
        self._known.move_to_end(participant)
        self._seen[participant] = self._services.clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._store_seen)
        return found[1]

    async def record(self, participant: str, introduction: Introduction) -> participants.CheckedIn:
        """Store a participant's declaration; returns its enrolment.

        Raises:
            RecordMissingError: if there is no such participant.
        """
        now, (examples, labels) = self._services.clock(), _declared(introduction)

        def work(connection: Connection) -> participants.CheckedIn:
            return participants.check_in(connection, participant, at=now, examples=examples, labels=labels)

        enrolled = await self._services.writer.run(work)
        if enrolled.kind is ParticipantKind.SILO:
            self._services.silos.add(participant)
        if introduction.unary:
            self._known[participant] = (examples, labels), enrolled
            self._known.move_to_end(participant)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return enrolled

    def stop(self) -> None:
        """Store the times that are not stored yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._store_seen()

    def _store_seen(self) -> None:
        seen, self._seen, self._timer = self._seen, {}, None
        try:
            stored = self._services.writer.submit(partial(participants.seen, at=seen))
        except ServerError as error:
            log.warning("the last check-ins of %d participants are not stored: %s", len(seen), error.logged)
        else:
            stored.add_done_callback(_log_failure)


def _declared(introduction: Introduction) -> _Declared:
    return introduction.examples, tuple(sorted(introduction.labels.items()))


def _log_failure(stored: Future[None]) -> None:
    error = None if stored.cancelled() else stored.exception()
    if error is not None:
        log.warning("the last check-ins of some participants are not stored: %s", error)
