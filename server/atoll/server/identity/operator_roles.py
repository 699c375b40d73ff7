"""Roles of operators: one of four, in all projects or in some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


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


@dataclass(frozen=True)
class ProjectRole:
    """A role in one project; with an ``organisation`` only for the participants and join tokens of that one."""

    role: OperatorRole
    organisation: str = ""


@dataclass(frozen=True)
class Rights:
    """What one operator may do.

    Attributes:
        everywhere: its role in all projects and for the server itself; None if it has roles in some projects only.
        projects: its roles in single projects, by project, which hold there instead of ``everywhere``.
    """

    everywhere: OperatorRole | None = None
    projects: Mapping[str, ProjectRole] = field(default_factory=lambda: MappingProxyType({}))

    def within(self, project: str) -> ProjectRole | None:
        """The role in a project; None if the operator has none there."""
        own = self.projects.get(project)
        if own is None and self.everywhere is not None:
            return ProjectRole(self.everywhere)
        return own
