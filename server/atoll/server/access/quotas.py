"""Checks of quotas and of closed projects. Each check is part of the transaction that begins something."""

from __future__ import annotations

from sqlalchemy import Connection

from atoll.server.errors import ConflictError, LimitExceededError
from atoll.server.rounds import RunStatus
from atoll.server.stores import Project, participants, projects, runs, tokens
from atoll.text.figures import counted

AT_WORK = tuple(status.value for status in RunStatus if not status.ended)
_RAISE = "ask an administrator of the server for more: atoll project quota"


def require_open(project: Project) -> None:
    """Refuse to begin something in a closed project.

    Raises:
        ConflictError: if it is closed.
    """
    if project.closed_at is not None:
        raise ConflictError(
            "project.closed", f"project {project.name} is closed: nothing begins in it", "use another project"
        )


def check_no_run(connection: Connection, name: str) -> None:
    """Refuse to close a project with a run that has not ended.

    Raises:
        ConflictError: if there is such a run.
    """
    left = runs.count_with_status(connection, name, AT_WORK)
    if left:
        raise ConflictError(
            "project.busy",
            f"{counted(left, 'run')} of project {name} {'has' if left == 1 else 'have'} not ended",
            "wait for the end, or cancel: atoll run cancel",
        )


def check_runs(connection: Connection, name: str) -> None:
    """Refuse a new run in a project that is closed or whose quota of runs is used up.

    Raises:
        ConflictError: if the project is closed.
        LimitExceededError: if that many of its runs have not ended.
    """
    project = projects.get(connection, name)
    require_open(project)
    if project.max_runs is None:
        return
    there = runs.count_with_status(connection, name, AT_WORK)
    if there >= project.max_runs:
        raise LimitExceededError(
            "project.runs",
            f"{counted(there, 'run')} of project {name} {'has' if there == 1 else 'have'} not ended; its quota is "
            f"{project.max_runs}",
            f"wait for the end of one, or cancel it; or {_RAISE} {name} --runs N",
        )


def check_participants(
    connection: Connection, name: str, more: int, *, now: float, promised: bool, shows_counts: bool
) -> None:
    """Refuse new participants of a project that is closed or would exceed its quota.

    Args:
        connection: to the database.
        name: the project's name.
        more: number of new participants.
        now: epoch seconds, UTC.
        promised: whether to count participants that unused join tokens may admit: for new tokens, but not when one is
            spent.
        shows_counts: whether the refusal may name the project's counts.

    Raises:
        ConflictError: if the project is closed.
        LimitExceededError: if the quota would be exceeded.
    """
    project = projects.get(connection, name)
    require_open(project)
    if project.max_participants is None:
        return
    there = participants.count_standing(connection, name)
    coming = tokens.count_open(connection, name, now=now) if promised else 0
    if there + coming + more > project.max_participants:
        also = f", {counted(coming, 'unused join token')}" if coming else ""
        counts = f" of {project.max_participants}: it has {counted(there, 'participant')}{also}"
        raise LimitExceededError(
            "project.participants",
            f"{more} more would exceed the quota of participants of project {name}{counts if shows_counts else ''}",
            f"revoke participants that left; or {_RAISE} {name} --participants N",
        )


def check_model_bytes(project: Project, held: int, planned: int) -> None:
    """Refuse a run whose models would exceed the quota of its project.

    Args:
        project: the run's project.
        held: bytes that the project already stores.
        planned: maximum bytes that the run will keep.

    Raises:
        LimitExceededError: if the quota would be exceeded.
    """
    quota = project.max_model_bytes
    if quota is not None and held + planned > quota:
        raise LimitExceededError(
            "project.model_bytes",
            f"project {project.name} stores {held:,} bytes of models, and this run keeps up to {planned:,}: together "
            f"more than its quota of {quota:,}",
            f"delete runs (atoll run delete), or keep fewer models (retention.models); or {_RAISE} {project.name} "
            "--stored-gb N",
        )
