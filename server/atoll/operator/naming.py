"""Find runs and participants by their user-given names; ambiguous names are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from atoll.operator.errors import BadInputError
from atoll.server.control import ParticipantSummary

MAX_LISTED = 10
"""Maximum number of candidates in an error."""
_RUN_ID = re.compile("r[a-z2-7]{12}")
_PARTICIPANT_ID = re.compile("p[a-z2-7]{12}")


def run_called(text: str, runs: Callable[[], Iterable[tuple[str, str, str]]]) -> str:
    """The id of the run with this id or name; a text that is neither is returned, for the server to refuse.

    Args:
        text: an id or a name; an id is not looked up.
        runs: returns (id, name, status) of every run, newest first.

    Raises:
        BadInputError: if several runs have this name; lists them.
    """
    if _RUN_ID.fullmatch(text):
        return text
    found = [(run, status) for run, name, status in runs() if text in (run, name)]
    if len(found) > 1:
        raise _ambiguous(f"{len(found)} runs are named {text!r}", [f"{run} ({status})" for run, status in found], "run")
    return found[0][0] if found else text


def participant_called(text: str, participants: Callable[[], Iterable[ParticipantSummary]]) -> str:
    """The id of the participant named by ``text``.

    Args:
        text: an id, which is not looked up; an organisation with one participant that is not revoked; both, as
            ``north/p3wajvfr7oa6f``; or a label of one, as ``site=ward-7``.
        participants: returns every enrolled participant.

    Raises:
        BadInputError: if several participants have this name, with a list of them.
    """
    own = text.rpartition("/")[2]
    if _PARTICIPANT_ID.fullmatch(own):
        return own
    found = [one for one in participants() if one.participant == text or (one.revoked_at is None and _has(one, text))]
    if len(found) > 1:
        raise _ambiguous(
            f"{len(found)} participants are named {text!r}",
            [f"{one.participant} ({_described(one)})" for one in found],
            "participant",
        )
    return found[0].participant if found else text


def _has(one: ParticipantSummary, text: str) -> bool:
    name, equals, value = text.partition("=")
    return one.organisation == text or (equals != "" and one.labels.get(name) == value)


def _described(one: ParticipantSummary) -> str:
    labels = (f"{name}={value}" for name, value in sorted(one.labels.items()))
    return ", ".join((one.organisation, *labels, "connected" if one.connected else "away"))


def _ambiguous(what: str, candidates: list[str], kind: str) -> BadInputError:
    more = len(candidates) - MAX_LISTED
    listed = ", ".join(candidates[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
    return BadInputError(f"{what}: {listed}", f"name the {kind} by its id")
