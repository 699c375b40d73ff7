"""The pages without forms: each shows answers of the server. Handlers that call the server run in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from atoll.console.guard import session_of
from atoll.console.live import PACE_S, polled
from atoll.console.paging import page_number
from atoll.console.round_view import round_view
from atoll.console.run_view import run_view, status_words
from atoll.console.templating import page
from atoll.server.control.words import parse_round_label
from atoll.text.figures import counted

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.console.live import Live
    from atoll.console.reading import Reader
    from atoll.console.sessions import Access

RUNS_PER_PAGE = 100
MAX_RUNS = 10_000
PARTICIPANTS_PER_PAGE = 200
LIST_INTERVAL_S = 2.0
"""Seconds between two polls of a list on a page; the server streams changes of a single run, but not of lists."""
MAX_LOG_LINES = 200
_LEVELS: Mapping[str, Literal["info", "warning", "error"]] = {"warning": "warning", "error": "error"}
NOTES = {
    "pause": "The run pauses when the round in progress has ended.",
    "resume": "The run goes on.",
    "cancel": "The run is cancelled.",
    "extend": "The run goes on from its newest model.",
    "start": "The run has begun.",
}
"""Notices after an action."""


class Pages:
    """Pages that change nothing."""

    def __init__(self, reader: Reader, live: Live, access: Access) -> None:
        self._reader = reader
        self._live = live
        self._access = access

    def runs(self, request: Request) -> Response:
        """The runs, the newest first."""
        limit = min(MAX_RUNS, RUNS_PER_PAGE * page_number(request.query_params.get("page")))
        found = tuple(self._reader.operator.runs(limit + 1))
        more = limit // RUNS_PER_PAGE + 1 if len(found) > limit and limit < MAX_RUNS else None
        return self._page(request, "runs.html.j2", runs=found[:limit], more=more, info=self._reader.operator.health())

    def run(self, request: Request) -> Response:
        """One run and its rounds."""
        known = self._reader.run(request.path_params["run"])
        detail = known.refreshed()
        view = run_view(detail, known.recent(detail), page_number(request.query_params.get("page")))
        note = NOTES.get(request.query_params.get("done", ""), "")
        return self._page(request, "run.html.j2", view=view, run=detail.run, note=note, status=status_words(detail.run))

    def round(self, request: Request) -> Response:
        """One round of a run, every attempt or one."""
        run, label = request.path_params["run"], request.path_params["label"]
        try:
            number, attempt = parse_round_label(label)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        detail = self._reader.operator.run(run).detail(members=True, only=number)
        found = [item for item in detail.rounds if attempt in (None, item.attempt)]
        if not found:
            raise HTTPException(404, f"run {run} has no round {label}")
        chosen = request.query_params.get("status", "")
        view = round_view(found[-1], chosen, page_number(request.query_params.get("page")))
        return self._page(request, "round.html.j2", view=view, run=detail.run, attempts=detail.rounds)

    def statistics(self, request: Request) -> Response:
        """The figures of a run of statistics."""
        run = self._reader.operator.run(request.path_params["run"])
        return self._page(request, "statistics.html.j2", run=run.summary(), findings=run.statistics())

    def participants(self, request: Request) -> Response:
        """The page of enrolled participants."""
        connected = request.query_params.get("connected") == "yes"
        organisation = request.query_params.get("organisation", "").strip()
        number = page_number(request.query_params.get("page"))
        start = (number - 1) * PARTICIPANTS_PER_PAGE
        found = self._reader.participants(
            connected=connected, organisation=organisation, start=start, size=PARTICIPANTS_PER_PAGE
        )
        chosen = {"found": found, "connected": connected, "organisation": organisation, "number": number}
        return self._page(request, "participants.html.j2", info=self._reader.operator.health(), **chosen)

    def participant(self, request: Request) -> Response:
        """One participant, its runs and their privacy."""
        name = request.path_params["participant"]
        privacy = self._reader.operator.participant_privacy(name)
        every = self._reader.operator.participants(organisation=privacy.organisation)
        found = next((one for one in every if one.participant == name), None)
        if found is None:
            raise HTTPException(404, f"there is no participant {name}")
        return self._page(request, "participant.html.j2", found=found, privacy=privacy)

    def log(self, request: Request) -> Response:
        """The newest lines of the server's log."""
        level = _LEVELS.get(request.query_params.get("level", ""), "info")
        lines = tuple(self._reader.operator.log_lines(MAX_LOG_LINES, level=level))
        return self._page(request, "log.html.j2", lines=lines, level=level, most=MAX_LOG_LINES)

    async def run_events(self, request: Request) -> Response:
        """Event stream: a run has changed."""
        run = await run_in_threadpool(self._reader.operator.run, request.path_params["run"])

        async def changes() -> AsyncIterator[str]:
            async for progress in run.follow_async(pace_s=PACE_S):
                yield status_words(progress.run)

        return self._events(request, changes())

    async def runs_events(self, request: Request) -> Response:
        """Event stream: the list of runs has changed."""
        return self._events(request, polled(self._runs_seen, LIST_INTERVAL_S))

    async def participants_events(self, request: Request) -> Response:
        """Event stream: the connected participants have changed."""
        return self._events(request, polled(self._connected_seen, LIST_INTERVAL_S))

    async def log_events(self, request: Request) -> Response:
        """Event stream: the log has a new line."""
        return self._events(request, polled(self._log_seen, LIST_INTERVAL_S))

    def _events(self, request: Request, changes: AsyncIterator[str]) -> Response:
        session = session_of(request)
        return self._live.answer(changes, lambda: self._access.is_open(session))

    def _runs_seen(self) -> tuple[object, str]:
        found = tuple(self._reader.operator.runs(RUNS_PER_PAGE))
        working = sum(not run.ended for run in found)
        return found, f"{counted(working, 'run')} not ended"

    def _connected_seen(self) -> tuple[object, str]:
        connected = self._reader.operator.health().connected
        return connected, f"{counted(connected, 'participant')} connected"

    def _log_seen(self) -> tuple[object, str]:
        return tuple(self._reader.operator.log_lines(1)), "the newest lines"

    def _page(self, request: Request, name: str, **values: object) -> Response:
        return page(
            name, {**self._reader.common(), **values}, address=self._reader.address, session=session_of(request)
        )
