"""Paces the check-ins of all projects: each has its own return times and a fair share of the server's rate."""

from __future__ import annotations

import random
from collections.abc import Callable

from atoll.server.config.check_in_settings import DEFAULT_CHECK_INS, CheckInSettings
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.runs.project_pace import ProjectPace
from atoll.server.runs.shared_rate import SharedRate


class PaceSteering:
    """The paces of all projects. Single-threaded: only the event loop uses it.

    Args:
        clock: epoch seconds.
        settings: rates and times.
        chance: spreads returns.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        settings: CheckInSettings = DEFAULT_CHECK_INS,
        chance: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._rate = SharedRate(settings)
        self._projects: dict[str, ProjectPace] = {}
        self._of_run: dict[str, ProjectPace] = {}

    @property
    def population(self) -> int:
        """Number of participants that are expected to return."""
        return sum(one.population for one in self._projects.values())

    def of(self, project: str) -> ProjectPace:
        """The pace of a project's participants."""
        found = self._projects.get(project)
        if found is None:
            found = self._projects[project] = ProjectPace(self._clock, self.settings, self._chance, self._rate)
        return found

    def need(self, run: str, participants: int, project: str = DEFAULT_PROJECT) -> None:
        """Note how many of a project's participants without a stream a run wants to draw from; 0: none."""
        place = self._of_run.pop(run, None) or self.of(project)
        place.need(run, participants)
        if participants:
            self._of_run[run] = place
