"""The participants of a server, by calls to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.operator.naming import participant_called
from atoll.server.control import ParticipantSummary, value_of, values_of
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.operator.calls import Calls
    from atoll.wire.v1.control_pb2_grpc import ControlServiceStub


class ServerParticipants:
    """Lists, finds and revokes participants."""

    _calls: Calls
    _control: ControlServiceStub

    def participants(self, *, connected: bool = False, organisation: str = "") -> Iterator[ParticipantSummary]:
        """All enrolled participants, or those that are connected, or of one organisation; page by page."""
        request = control_pb2.ListParticipantsRequest(connected=connected, organisation=organisation)
        for answer in self._calls.pages(self._control.ListParticipants, request):
            yield from values_of(ParticipantSummary, answer.participants)

    def participant_named(self, text: str) -> str:
        """The id of a participant: by its id, by an organisation or a label (``site=ward-7``) that only it has.

        Raises:
            BadInputError: if several participants have this name; lists them.
        """
        return participant_called(text, self.participants)

    def revoke(self, participant: str, reason: str = "") -> ParticipantSummary:
        """Revoke a participant, at once and permanently; ``participant`` is its id."""
        request = control_pb2.RevokeParticipantRequest(participant=participant, reason=reason)
        return value_of(ParticipantSummary, self._calls.call(self._control.RevokeParticipant, request).participant)
