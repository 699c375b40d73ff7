"""What is pushed to participants over their check-in streams."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.wire.fields import submessage
from atoll.wire.v1 import participation_pb2


@dataclass(frozen=True, slots=True)
class Invitation:
    """One member's invitation, in two parts that are joined when it is sent.

    So a layout of thousands of tensors is serialised once a run, and held once however many members wait for theirs.
    No field of ``Participate`` is in both parts: joined, they are one submessage, which no parser has to merge.

    Attributes:
        shared: serialised fields that are the same for every member; one object for all of them.
        own: this member's serialised fields.
    """

    shared: bytes
    own: bytes

    def serialised(self) -> bytes:
        """The ``CheckInResponse``."""
        return submessage(participation_pb2.CheckInResponse.PARTICIPATE_FIELD_NUMBER, self.shared, self.own)


Instruction = participation_pb2.CheckInResponse | Invitation


def serialised(instruction: Instruction) -> bytes:
    """An instruction as it is sent."""
    return instruction.serialised() if isinstance(instruction, Invitation) else instruction.SerializeToString()
