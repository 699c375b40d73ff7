"""The coordinator's interface for check-ins, by stream or by unary calls."""

from __future__ import annotations

from typing import Protocol

from atoll.server.runs.session import Introduction, Membership
from atoll.wire.v1 import participation_pb2


class CheckInApi(Protocol):
    """Handles the messages of participants that check in."""

    async def project_of(self, participant: str) -> str:
        """The project whose share of the rate the participant's check-ins take."""
        ...

    async def introduced(self, participant: str, introduction: Introduction) -> Membership:
        """A participant checks in; returns its enrolment."""
        ...

    async def replied(self, participant: str, reply: participation_pb2.TaskReply) -> None:
        """The participant accepted, declined or failed."""
        ...

    def expects(self, participant: str) -> bool:
        """Whether a run has drawn the participant, or expects a report from it."""
        ...

    def certificate_remaining_s(self, participant: str) -> float:
        """Seconds until the participant's certificate ends; negative if unknown."""
        ...
