"""Actions: start, pause, resume, cancel and extend runs. Each comes from a form of the console."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from atoll.console.forms import form_of
from atoll.console.guard import session_of
from atoll.console.reading import sees_all
from atoll.console.templating import page
from atoll.operator.errors import MAX_COUNT, BadInputError, OperatorError
from atoll.server.jobs import JobFileError, parse_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.console.reading import Reader
    from atoll.console.sessions import Access
    from atoll.operator import Operator, Run

JOB_FILE = "job.toml"
INITIAL, NEWEST = "initial", "newest"
"""The model of an existing run from which a new run starts."""
MAX_SHOWN = 40
"""Maximum characters of a form's field that an error repeats."""
MAX_REASON = 1000
"""Maximum characters of the reason for cancelling a run."""


class Actions:
    """The pages with forms, and the handlers of their submissions."""

    def __init__(self, reader: Reader, access: Access) -> None:
        self._reader = reader
        self._access = access

    async def choose_project(self, request: Request) -> Response:
        """Set the project that this session's pages show, or all projects; or reset the choice.

        A reset does not ask the server, because the operator may have lost its role in the chosen project.
        """
        form = await form_of(request)
        if "project" not in form:
            self._access.forget_choice(session_of(request))
            return RedirectResponse("/", 303)
        chosen = form["project"]
        await run_in_threadpool(self._require_allowed, chosen)
        self._access.choose(session_of(request), chosen)
        return RedirectResponse("/", 303)

    def _require_allowed(self, chosen: str) -> None:
        """Refuse a project in which the operator has no role.

        Raises:
            BadInputError: if the operator has no role there.
        """
        operator = self._reader.operator
        if not chosen and not sees_all(operator.whoami()):
            raise BadInputError("you have no role in all projects", "choose one from the list")
        if chosen and chosen not in {one.project for one in operator.projects()}:
            raise BadInputError(f"there is no project {chosen[:MAX_SHOWN]!r}", "choose one from the list")

    async def pause(self, request: Request) -> Response:
        """Pause a run after its current round."""
        return await self._done(request, "pause", lambda run, _: run.pause())

    async def resume(self, request: Request) -> Response:
        """Resume a paused run."""
        return await self._done(request, "resume", lambda run, _: run.resume())

    async def cancel(self, request: Request) -> Response:
        """Cancel a run now."""
        return await self._done(request, "cancel", lambda run, form: run.cancel(form.get("reason", "")[:MAX_REASON]))

    async def extend(self, request: Request) -> Response:
        """Extend a run that has ended."""
        return await self._done(request, "extend", lambda run, form: run.extend(_rounds(form.get("rounds", ""))))

    def confirm_cancel(self, request: Request) -> Response:
        """The page on which the operator confirms that a run is cancelled."""
        run = self._reader.operator.run(request.path_params["run"]).summary()
        return self._page(request, "cancel.html.j2", {"run": run, "max_reason": MAX_REASON})

    def new(self, request: Request) -> Response:
        """The form for a new run, filled with the job of an existing run if the address names one."""
        name = request.query_params.get("like", "")
        job = self._reader.operator.run(name).detail(since=MAX_COUNT).job_toml if name else ""
        return self._page(request, "start.html.j2", _start(job, name))

    async def start(self, request: Request) -> Response:
        """Begin a run; if its job is refused, show the form again with the error."""
        form = await form_of(request)
        job, like, model = form.get("job", ""), form.get("like", ""), form.get("model", INITIAL)
        try:
            run = await run_in_threadpool(submitted, self._reader.operator, job, like, newest=model == NEWEST)
        except OperatorError as error:
            said = _start(job, like, model, str(error))
            return await run_in_threadpool(self._page, request, "start.html.j2", said, status_code=400)
        return _to_run(run.id, "start")

    async def _done(self, request: Request, what: str, act: Callable[[Run, Mapping[str, str]], object]) -> Response:
        form = await form_of(request)

        def do() -> str:
            run = self._reader.operator.run(request.path_params["run"])
            act(run, form)
            return run.id

        return _to_run(await run_in_threadpool(do), what)

    def _page(self, request: Request, name: str, values: Mapping[str, object], *, status_code: int = 200) -> Response:
        session = session_of(request)
        return page(
            name,
            {**self._reader.common(), **values},
            address=self._reader.address,
            session=session,
            status_code=status_code,
        )


def submitted(operator: Operator, job: str, like: str, *, newest: bool) -> Run:
    """Begin a run with a job.

    Files that the job names are not read. The initial weights are those of another run; statistics need none.

    Args:
        operator: the connection.
        job: the text of the job file.
        like: the run whose model the new run starts from; empty for statistics.
        newest: whether to start from the newest model of that run instead of its initial one.

    Raises:
        BadInputError: if the job has problems, or trains and has no weights.
        OperatorError: if the server refuses it.
    """
    text = job.replace("\r\n", "\n")
    try:
        spec = parse_job(text, JOB_FILE)
    except JobFileError as error:
        raise BadInputError(str(error)) from error
    if spec.statistics is None and not like:
        raise BadInputError(
            "the job trains a model, and there are no initial weights",
            "open a run and choose `Start another like this`, or submit the job with `atoll run submit`",
        )
    with tempfile.TemporaryDirectory(prefix="atoll-console-") as folder:
        file, weights = Path(folder) / JOB_FILE, Path(folder) / "model.safetensors"
        file.write_text(text, encoding="utf-8")
        if spec.statistics is not None:
            return operator.submit(file)
        operator.run(like).save_model(weights, "latest" if newest else 0)
        return operator.submit(file, weights)


def _rounds(text: str) -> int:
    """The number of rounds in a form.

    Raises:
        BadInputError: if it is no number.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_COUNT))):
        raise BadInputError(f"rounds = {text[:MAX_SHOWN]!r}: not a number of rounds", "give a whole number from 1")
    return int(text)


def _start(job: str, like: str, model: str = INITIAL, error: str = "") -> Mapping[str, object]:
    return {"job": job, "like": like, "model": model, "error": error}


def _to_run(run: str, done: str) -> Response:
    return RedirectResponse(f"/runs/{quote(run, safe='')}?done={done}", 303)
