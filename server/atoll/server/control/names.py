"""Names of participants for people: the organisation where that is enough, never less than what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from atoll.server.control.summaries import RoundSummary

UNNAMED = ("", "default")
"""Organisations that name no one: join tokens without ``--organisation`` have ``default``."""


def shown_names(organisations: Mapping[str, str]) -> dict[str, str]:
    """A name for each participant, by id.

    It is the organisation of the only participant of an organisation (``north``), the id where all are of one
    organisation, and both otherwise (``north/p3wajvfr7oa6f``).

    Args:
        organisations: the organisation of each participant, by id.
    """
    members = Counter(organisations.values())
    return {name: _shown(name, own, members) for name, own in organisations.items()}


def names_of(rounds: Iterable[RoundSummary]) -> dict[str, str]:
    """``shown_names`` of the members of these rounds; those of a round in work come without organisations."""
    found: dict[str, str] = {}
    for item in rounds:
        for one in item.members:
            found[one.participant] = one.organisation or found.get(one.participant, "")
    return shown_names(found)


def _shown(name: str, organisation: str, members: Counter[str]) -> str:
    if organisation in UNNAMED or (len(members) == 1 and members[organisation] > 1):
        return name
    return organisation if members[organisation] == 1 else f"{organisation}/{name}"
