"""Limits on the size of answers about runs: participants' reports must not make an answer too large to read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atoll.wire.v1 import control_pb2

log = logging.getLogger(__name__)

MAX_OPERATOR_BYTES = 64 << 20
"""Maximum bytes of a message that the operator's commands accept."""
MAX_ROUND_BYTES = 8 << 20
"""Maximum bytes of one round including its members."""
MAX_ROUNDS_BYTES = MAX_OPERATOR_BYTES - 2 * MAX_ROUND_BYTES
"""Maximum bytes of all ended rounds; the rest is for the open round, the job file and the framing."""
_FRAME_BYTES = 8
"""Bytes of tag and length of a nested message."""


@dataclass(frozen=True)
class Rounds:
    """The rounds that fit in one answer, the oldest first, and a sentence about omissions."""

    rounds: list[control_pb2.RoundSummary]
    room: int
    omission: str = ""


def fitted(summary: control_pb2.RoundSummary) -> control_pb2.RoundSummary:
    """The round cut to ``MAX_ROUND_BYTES``: the members' figures are left out first, then the last members."""
    if summary.ByteSize() <= MAX_ROUND_BYTES:
        return summary
    count = len(summary.members)
    _keep_within(summary)
    left = count - len(summary.members)
    omission = f"too large for one answer: the members' figures{f' and {left} members' if left else ''} are left out"
    log.warning("round %d, attempt %d: %s", summary.round, summary.attempt, omission)
    summary.reason = "; ".join(part for part in (summary.reason, omission) if part)
    return summary


def newest_rounds(shown: Sequence[control_pb2.RoundSummary]) -> Rounds:
    """The newest of these rounds, as many as fit in one answer."""
    kept: list[control_pb2.RoundSummary] = []
    room = MAX_ROUNDS_BYTES
    for summary in reversed(shown):
        if summary.ByteSize() + _FRAME_BYTES > room:
            break
        room -= summary.ByteSize() + _FRAME_BYTES
        kept.append(summary)
    kept.reverse()
    left = len(shown) - len(kept)
    return Rounds(kept, room, _logged_omission(f"the oldest {left} rounds are left out") if left else "")


def with_members(shown: Rounds, members: Iterable[tuple[tuple[int, int], list[control_pb2.MemberSummary]]]) -> Rounds:
    """The rounds, with the members of as many of the newest ones as fit.

    Args:
        shown: the rounds without members.
        members: by (round, attempt), the newest first; read only as far as they fit.
    """
    by_key = {(one.round, one.attempt): one for one in shown.rounds}
    room = shown.room
    for key, found in members:
        summary = by_key.get(key)
        if summary is None:
            break
        bare = summary.ByteSize()
        summary.members.extend(found)
        fitted(summary)
        room -= summary.ByteSize() - bare
        if room < 0:
            del summary.members[:]
            omission = _logged_omission(f"the members of round {summary.round + 1} and of those before it are left out")
            return Rounds(shown.rounds, 0, "; ".join(part for part in (shown.omission, omission) if part))
    return Rounds(shown.rounds, room, shown.omission)


def _keep_within(summary: control_pb2.RoundSummary) -> None:
    for member in summary.members:
        member.ClearField("metrics")
    if summary.ByteSize() <= MAX_ROUND_BYTES:
        return
    members = list(summary.members)
    del summary.members[:]
    room = MAX_ROUND_BYTES - summary.ByteSize()
    for member in members:
        room -= member.ByteSize() + _FRAME_BYTES
        if room < 0:
            return
        summary.members.append(member)


def _logged_omission(omission: str) -> str:
    sentence = f"too large for one answer: {omission}"
    log.warning("a run is %s", sentence)
    return sentence
