"""Readable names of participants: organisation or label if unique, otherwise with the id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from atoll.server.control.runs import RoundSummary

UNNAMED = ("", "default")
"""Organisations that identify no one: join tokens without ``--organisation`` have ``default``."""
Labels = Mapping[str, Mapping[str, str]]
"""The labels of participants, by id."""


def shown_names(organisations: Mapping[str, str], labels: Labels | None = None) -> dict[str, str]:
    """A name for each participant, by id; commands take each of these forms.

    The name is the organisation if it has only one participant (``north``); otherwise a label that no other participant
    has (``site=ward-7``); otherwise the id, after the organisation if there are several (``north/p3wajvfr7oa6f``).

    Args:
        organisations: the organisation of each participant, by id.
        labels: the known labels of participants, by id.
    """
    members, own = Counter(organisations.values()), _own_labels(labels or {})
    return {name: _shown(name, home, members, own.get(name)) for name, home in organisations.items()}


def names_of(rounds: Iterable[RoundSummary]) -> dict[str, str]:
    """``shown_names`` of the members of these rounds; members of a live round may have only ids."""
    homes: dict[str, str] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for item in rounds:
        for one in item.members:
            homes[one.participant] = one.organisation or homes.get(one.participant, "")
            labels[one.participant] = one.labels or labels.get(one.participant, {})
    return shown_names(homes, labels)


def _own_labels(labels: Labels) -> dict[str, str]:
    """For each participant, the first of its labels by name that no other participant has."""
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
