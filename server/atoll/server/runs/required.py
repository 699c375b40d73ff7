"""The participants that a job requires in each round (``[cohort] required``), by id or organisation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import JobSpec
from atoll.server.rounds import DrawCohort, RoundKind
from atoll.server.runs.session import Session
from atoll.server.stores import participants
from atoll.text.figures import counted

SHOWN_ORGANISATIONS = 20
"""Maximum number of organisations that a refusal lists."""


def required_among(sessions: Iterable[Session], names: Collection[str]) -> dict[str, str]:
    """The names under which participants are required, by id; participants that are not required are left out."""
    found = {}
    for session in sessions:
        name = next((one for one in (session.participant, session.organisation) if one in names), None)
        if name is not None:
            found[session.participant] = name
    return found


def absent_names(
    effect: DrawCohort, spec: JobSpec, *, able: Iterable[Session], unable: Iterable[Session]
) -> tuple[str, ...]:
    """The required names for which no participant can be drawn now.

    Args:
        effect: the round.
        spec: its job.
        able: participants that can be drawn, or whose late update counts in the round.
        unable: connected participants that are not able to take part in a round of this kind. An evaluation does not
            wait for them.
    """
    names = spec.cohort.required_names
    if not names:
        return ()
    there = set(required_among(able, names).values())
    if effect.kind is RoundKind.EVALUATE:
        there |= set(required_among(unable, names).values())
    return tuple(name for name in names if name not in there)


def required_members(
    spec: JobSpec, named: Mapping[str, str], drawn: Iterable[str], there: Iterable[Session]
) -> tuple[tuple[str, str], ...]:
    """The drawn participants that must report, with the names under which the job requires them.

    Args:
        spec: the job.
        named: the result of ``required_among``.
        drawn: ids of the cohort.
        there: the participants that the cohort was drawn from.
    """
    if not spec.cohort.requires_all:
        return tuple((name, named[name]) for name in drawn if name in named)
    organisations = {session.participant: session.organisation for session in there}
    return tuple((name, organisations[name] or name) for name in drawn)


def warnings_of_choice(spec: JobSpec, connected: int) -> tuple[str, ...]:
    """The warning for a job that requires all participants while more are connected than its cohort takes."""
    cohort = spec.cohort
    if connected <= cohort.invited or not cohort.requires_all or cohort.sampler == "poisson":
        return ()
    there = f"{connected} participants are connected, and each round draws {cohort.invited} of them (cohort.size)"
    if spec.statistics is not None:
        return (f"{there}: the run fails when two rounds draw different ones; set cohort.size = {connected}",)
    return (
        f'{there}: cohort.required = "all" means those; for all of them in each round set cohort.size = {connected}',
    )


def check_required(connection: Connection, spec: JobSpec, project: str) -> None:
    """Check that each required name has a participant in the project, and that a cohort has room for all of them.

    Raises:
        InvalidRequestError: shows the missing name and the enrolled organisations.
    """
    size, found = spec.cohort.size, set[str]()
    for name in spec.cohort.required_names:
        ids = participants.named(connection, project, name, limit=size + 1)
        if not ids:
            there = ", ".join(participants.organisations(connection, project, limit=SHOWN_ORGANISATIONS)) or "none"
            raise InvalidRequestError(
                "job.required",
                f"cohort.required names {name!r}, which is neither an enrolled participant nor an organisation of one",
                f"enrolled are participants of: {there}; `atoll participants list` has their ids",
            )
        found.update(ids)
    if len(found) > size:
        raise InvalidRequestError(
            "job.required",
            f"cohort.required names at least {counted(len(found), 'participant')}; a cohort has {size}",
            "raise cohort.size, or name participants by id instead of organisations",
        )
