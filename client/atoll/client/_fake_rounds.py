"""Shared by the fake servers for tests: participants with their policies, and their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.client._session.protection import Outgoing, Protection, protection_of
from atoll.client._state.usage import Spent
from atoll.client._transfer.elements import cut_ranges
from atoll.client.participant import Participant, objection_of
from atoll.client.policy import Decision, Policy
from atoll.client.task import Task
from atoll.wire.encoding import decode, stored_items

FAKE_SERVER = "fake"
"""Name of a ``FakeServer`` in the record of promises."""
_CHUNK_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class FakeReport:
    """The report of one participant; ``update`` has the flat elements of its update, before weighting."""

    participant: int
    weight: int
    partial: bool
    seconds: float
    metrics: Mapping[str, float]
    evaluation: Mapping[str, float]
    update: npt.NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class FakeRound:
    """One round: the reports that counted, and (participant, reason) of those that declined."""

    round: int
    reports: tuple[FakeReport, ...]
    declined: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Member:
    """A participant with its policy and protection."""

    index: int
    participant: Participant
    policy: Policy
    protection: Protection

    def decide(self, task: Task) -> Decision:
        """Whether the participant accepts a task."""
        decision = self.policy.decide(task, Spent())
        objection = self.protection.objection(task) or objection_of(self.participant, task)
        return decision if not decision.accepted or objection is None else Decision.decline(objection)


def members_of(participants: tuple[Participant, ...], policy: Policy, state: Path) -> tuple[Member, ...]:
    """The prepared participants, each with its own folder in ``state``."""
    members = []
    for index, participant in enumerate(participants):
        folder = state / str(index)
        folder.mkdir(exist_ok=True)
        participant.prepare(folder)
        members.append(Member(index, participant, policy, protection_of(policy, folder, FAKE_SERVER)))
    return tuple(members)


def received(sent: Outgoing, task: Task, elements: int) -> npt.NDArray[np.float64]:
    """The update's values as the server decodes them from the wire, for the given ``elements`` of the model."""
    flat = np.zeros(elements)
    for chunk in cut_ranges(sent.shard.ranges, _CHUNK_ELEMENTS):
        payload = np.empty(stored_items(task.encoding, chunk.size), task.encoding.storage)
        sent.shard.source.read(chunk, task.encoding, payload)
        flat[chunk.offset : chunk.stop] = decode(payload.view(np.uint8).data, task.encoding, chunk.size)
    return flat
