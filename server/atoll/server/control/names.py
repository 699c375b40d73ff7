"""Readable names of participants: organisation or label where that is unique, and otherwise more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from atoll.server.control.summaries import RoundSummary

UNNAMED = ("", "default")
"""Organisations that name no one: join tokens without ``--organisation`` have ``default``."""
Labels = Mapping[str, Mapping[str, str]]
"""The labels of participants, by id."""


def shown_names(organisations: Mapping[str, str], labels: Labels | None = None) -> dict[str, str]:
    """A name for each participant, by id; commands take each of these forms.

    It is the organisation of the only participant of an organisation (``north``); otherwise a label that no other
    has (``site=ward-7``); otherwise the id where all are of one organisation, or both (``north/p3wajvfr7oa6f``).

    Args:
        organisations: the organisation of each participant, by id.
        labels: theirs, as far as they are known.
    """
    members, own = Counter(organisations.values()), _own_labels(labels or {})
    return {name: _shown(name, home, members, own.get(name)) for name, home in organisations.items()}


def names_of(rounds: Iterable[RoundSummary]) -> dict[str, str]:
    """``shown_names`` of the members of these rounds; those of a round in work come with their ids alone."""
    homes: dict[str, str] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for item in rounds:
        for one in item.members:
            homes[one.participant] = one.organisation or homes.get(one.participant, "")
            labels[one.participant] = one.labels or labels.get(one.participant, {})
    return shown_names(homes, labels)


def _own_labels(labels: Labels) -> dict[str, str]:
    """For each participant the first of its labels, by name, that no other has."""
    all_of = {name: [f"{key}={value}" for key, value in sorted(found.items())] for name, found in labels.items()}
    counts = Counter(label for found in all_of.values() for label in found)
    own = ((name, next((label for label in found if counts[label] == 1), None)) for name, found in all_of.items())
    return {name: label for name, label in own if label is not None}


def _shown(name: str, organisation: str, members: Counter[str], label: str | None) -> str:
    if organisation not in UNNAMED and members[organisation] == 1:
        return organisation
    if label is not None:
        return label
    return name if organisation in UNNAMED or len(members) == 1 else f"{organisation}/{name}"
