"""Decide which replica group also runs the micro-batches of a late one. Pure; one step at a time.

After Dean and Ghemawat 2004 (MapReduce, section 3.6, backup tasks), with the multiplier of Spark's
``spark.speculation``: half of the groups set the pace of a step, and one that takes a multiple of it is late. A group
that was late in the previous step is expected to be late again until it has computed its own gradient in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from atoll.datacenter.elastic.replicas.messages import Arrive


@dataclass
class Speculation:
    """Which group computes which gradient in the current step.

    Attributes:
        after: a group is late when it takes this many times as long as half of the groups; None: no speculation.
        ranks: ranks of each group.
    """

    after: float | None
    ranks: int
    _began_s: float = 0.0
    _arrived_s: dict[int, float] = field(default_factory=dict)
    """When each group had its own gradient; the first to arrive comes first."""
    _late_of: dict[int, int] = field(default_factory=dict)
    """The late group whose micro-batches each group was asked to run in this step."""
    _others: dict[int, dict[int, Arrive]] = field(default_factory=dict)
    """Reports of a group's ranks about a late group's gradient."""
    _known: set[int] = field(default_factory=set)
    """Groups that were late in the last step in which they took part."""

    def begin(self, now_s: float) -> None:
        """Begin the next step."""
        self._known |= set(self._late_of.values()) - self._arrived_s.keys()
        self._began_s = now_s
        self._arrived_s, self._late_of, self._others = {}, {}, {}

    def arrived(self, group: int, now_s: float) -> None:
        """Note that a group has its own gradient."""
        self._arrived_s.setdefault(group, now_s)
        self._known.discard(group)

    def lost(self, group: int) -> None:
        """Forget a group; the late group that it helped can be given to another."""
        for kept in (self._arrived_s, self._late_of, self._others):
            kept.pop(group, None)
        self._known.discard(group)

    def heard(self, group: int, position: int, message: Arrive) -> None:
        """Note that a rank has its part of a late group's gradient."""
        if self._late_of.get(group) == message.share:
            self._others.setdefault(group, {})[position] = message

    def held(self, live: Iterable[int]) -> dict[int, tuple[int, Arrive]]:
        """Return groups that do not have their own gradient yet, with the group that holds it and its report."""
        found = {
            late: (group, said[0])
            for group, late in self._late_of.items()
            if len(said := self._others.get(group, {})) == self.ranks
        }
        return {late: found[late] for late in live if late in found and late not in self._arrived_s}

    def due_s(self, live: Sequence[int]) -> float | None:
        """Return when ``assign`` has a late group to give away, if no message comes before; None if never."""
        if not self._free(live) or not (late := self._late(live)):
            return None
        return self._began_s if self._known & set(late) else self._late_from_s(live)

    def assign(self, live: Sequence[int], now_s: float) -> Iterator[tuple[int, int]]:
        """Yield pairs of a group that has arrived and the late group whose micro-batches it is to run."""
        from_s = self._late_from_s(live)
        overdue = from_s is not None and now_s >= from_s
        late = [one for one in self._late(live) if overdue or one in self._known]
        for group, other in zip(self._free(live), late, strict=False):
            self._late_of[group] = other
            yield group, other

    def _late_from_s(self, live: Sequence[int]) -> float | None:
        """Return the time from which a group is late; None while fewer than half of the groups have arrived."""
        half = (len(live) + 1) // 2
        if self.after is None or len(self._arrived_s) < max(1, half):
            return None
        pace_s = sorted(self._arrived_s.values())[half - 1] - self._began_s
        return self._began_s + self.after * pace_s

    def _free(self, live: Sequence[int]) -> list[int]:
        """Return groups that can take another one's micro-batches, the fastest first."""
        if self.after is None:
            return []
        return [one for one in self._arrived_s if one in live and one not in self._late_of]

    def _late(self, live: Sequence[int]) -> list[int]:
        given = set(self._late_of.values())
        return [one for one in live if one not in self._arrived_s and one not in given]


def tokens_and_loss(said: Mapping[int, Arrive]) -> tuple[int, float]:
    """Return counted tokens of gradients together, and the mean loss over them."""
    tokens = sum(one.tokens for one in said.values())
    return tokens, sum(one.loss * one.tokens for one in said.values()) / max(1, tokens)
