"""The four roles of operators."""

from __future__ import annotations

from enum import StrEnum


class OperatorRole(StrEnum):
    """The role of an operator.

    A viewer reads. An operator also steers runs, lets participants in and reads models. A privacy officer also limits
    populations, stops runs and reads the audit log. An administrator may do all that, and manages operators.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    PRIVACY_OFFICER = "privacy_officer"
    ADMINISTRATOR = "administrator"

    @property
    def words(self) -> str:
        """As people read it."""
        return self.value.replace("_", " ")


EVERY_ROLE = frozenset(OperatorRole)
