"""Operators' roles: one of four, in all projects or in single ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class OperatorRole(StrEnum):
    """The role of an operator.

    A viewer reads. An operator also controls runs, admits participants and reads models. A privacy officer reads,
    limits populations, stops runs and reads the audit log. An administrator may do all that, and manages operators.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    PRIVACY_OFFICER = "privacy_officer"
    ADMINISTRATOR = "administrator"

    @property
    def words(self) -> str:
        """The role in words, for messages."""
        return self.value.replace("_", " ")


EVERY_ROLE = frozenset(OperatorRole)


@dataclass(frozen=True)
class ProjectRole:
    """A role in one project; if it has an ``organisation``, only for its participants and join tokens."""

    role: OperatorRole
    organisation: str = ""


@dataclass(frozen=True)
class Rights:
    """The rights of one operator.

    Attributes:
        everywhere: its role in all projects and for the server itself; None if it has roles only in single projects.
        projects: its roles in single projects, by project; there they replace ``everywhere``.
    """

    everywhere: OperatorRole | None = None
    projects: Mapping[str, ProjectRole] = field(default_factory=lambda: MappingProxyType({}))

    def within(self, project: str) -> ProjectRole | None:
        """The role in a project; None if the operator has none there."""
        own = self.projects.get(project)
        if own is None and self.everywhere is not None:
            return ProjectRole(self.everywhere)
        return own
