"""Completes the messages of ``WatchRun``, which name only the members that changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.wire.v1 import control_pb2


@dataclass
class Following:
    """The members of the current round of a ``WatchRun`` stream, according to its messages so far."""

    _key: tuple[int, int] | None = None
    _members: dict[str, control_pb2.MemberSummary] = field(default_factory=dict)

    def complete(self, message: control_pb2.WatchRunResponse) -> control_pb2.WatchRunResponse | None:
        """The message with all members of its round, by id; None if more messages about the same change follow."""
        key = (message.round.round, message.round.attempt)
        if key != self._key:
            self._key, self._members = key, {}
        self._members.update({member.participant: member for member in message.round.members})
        if message.more:
            return None
        if message.HasField("round"):
            complete = control_pb2.WatchRunResponse()
            complete.CopyFrom(message)
            del complete.round.members[:]
            complete.round.members.extend(self._members[name] for name in sorted(self._members))
            return complete
        return message
