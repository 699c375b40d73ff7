"""Playing scenarios against one client, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tests.conformance.scenarios import Scenario
from tests.conformance.server import ConformanceServer


@dataclass(frozen=True)
class Outcome:
    """The outcome of one scenario; ``problem`` is empty if the client passed."""

    scenario: str
    expected: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the client passed."""
        return not self.problem


async def play(server: ConformanceServer, scenarios: Sequence[Scenario]) -> AsyncIterator[Outcome]:
    """The outcomes as they come. Without the first, the enrolment, there is nothing more to play."""
    server.lose_enrolments = 1
    for scenario in scenarios:
        problem = ""
        try:
            await scenario.play(server)
        except TimeoutError:
            problem = f"nothing of the kind happened within {server.wait_s:g} s"
        except AssertionError as error:
            problem = str(error) or type(error).__name__
        yield Outcome(scenario.name, scenario.expects, problem)
        if problem and scenario is scenarios[0]:
            return  # no client is there
        server.begin()
