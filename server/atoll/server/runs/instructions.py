"""Messages that the server sends to participants that have checked in."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.wire.fields import submessage
from atoll.wire.v1 import participation_pb2


@dataclass(frozen=True, slots=True)
class Invitation:
    """One member's invitation, in two parts that are joined when it is sent.

    A layout of thousands of tensors is thus serialised once per run, and held once for all members that wait. No field
    of ``Participate`` is in both parts, so joined they are one submessage that parsers need not merge.

    Attributes:
        shared: serialised fields that are the same for every member; one object for all of them.
        own: this member's serialised fields.
    """

    shared: bytes
    own: bytes

    @property
    def size(self) -> int:
        """Bytes of both parts."""
        return len(self.shared) + len(self.own)

    def serialised(self) -> bytes:
        """The ``CheckInResponse``."""
        return submessage(participation_pb2.CheckInResponse.PARTICIPATE_FIELD_NUMBER, self.shared, self.own)


Instruction = participation_pb2.CheckInResponse | Invitation


def serialised(instruction: Instruction) -> bytes:
    """The serialised instruction."""
    return instruction.serialised() if isinstance(instruction, Invitation) else instruction.SerializeToString()


@dataclass(frozen=True, slots=True)
class UnaryAnswer:
    """The answer to a unary check-in.

    Attributes:
        head: the answer without instructions.
        instructions: for the participant, in order.
    """

    head: participation_pb2.CheckInOnceResponse
    instructions: tuple[Instruction, ...] = ()

    def serialised(self) -> bytes:
        """The ``CheckInOnceResponse``."""
        number = participation_pb2.CheckInOnceResponse.INSTRUCTIONS_FIELD_NUMBER
        parts = (submessage(number, serialised(one)) for one in self.instructions)
        return b"".join((self.head.SerializeToString(), *parts))
