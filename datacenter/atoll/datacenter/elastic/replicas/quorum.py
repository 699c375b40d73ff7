"""Decide which groups are in a step, and whether its mean counts. Pure: events and the time in, actions out.

A group is in one of these states; ``lost`` leads from each of them to ABSENT::

    ABSENT ── its processes start ──> COMING ── all its ranks have joined ──> JOINING
    JOINING ── a step was committed, or all begin together ──> LIVE
    LIVE ── could not get its state, or is too many steps behind ──> COMING

A step of the live groups::

    arrive ... arrive ──> quorum ──> each member sums ──> vote ... vote ──> all good: commit, else: quorum again

With speculation, a late group's micro-batches are also given to a group that has arrived, and the first gradient
counts; see ``speculation``. The order to run them is never sent during an attempt, so that every rank of a group
receives it before or after the same mean.

Every message of an attempt precedes those of the next one on each connection, so a vote never counts for the wrong
attempt. A group that is lost before the commit makes the attempt void for all: the other members then sum the gradients
that they still hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from atoll.datacenter.elastic.replicas.messages import (
    NO_STATE,
    Arrive,
    AskStop,
    Begin,
    Behind,
    Decision,
    FromRank,
    Heal,
    Join,
    Leave,
    Over,
    Quorum,
    Speculate,
    Vote,
)
from atoll.datacenter.elastic.replicas.speculation import Speculation, tokens_and_loss
from atoll.datacenter.elastic.replicas.standing import Action, Attempt, End, Fail, Group, Rules, Say, Send, Standing

MAX_BEHIND = 4
"""Steps that a group may be behind: each of its ranks keeps one mean gradient per step."""
MAX_FAILURES = 5
"""Attempts of one step that may fail although no group was lost."""
GRACE_S = 60.0
"""Seconds that members have for their votes after an attempt has failed or timed out: longer than a rank may be unable
to break off, see ``average.CONNECT_TIMEOUT_S``."""
START_S = 1800.0
"""Seconds that a started group has until it is ready, unless the limit of a sum is longer."""


class Quorums:
    """The coordinator of one job.

    Attributes:
        step: the step that live groups are at.
        lost: groups lost so far.
        healed: groups that came back with a live group's state.
        begun: whether groups have begun together.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._groups = {number: Group() for number in range(rules.groups)}
        self._attempt: Attempt | None = None
        self._members: tuple[int, ...] = ()
        self._speculation = Speculation(rules.speculate_after, rules.ranks)
        self._attempts = self._epoch = self._heals = self._failures = 0
        self._leader = 0
        self._stopping = self._over = self._last_made = False
        self._returning: set[int] = set()
        """Groups whose next arrival counts as healed."""
        self.step = 0
        self.lost = self.healed = 0
        self.begun = False

    @property
    def live(self) -> list[int]:
        """Groups that take part in steps."""
        return [number for number, group in self._groups.items() if group.standing is Standing.LIVE]

    @property
    def ending_leader(self) -> int | None:
        """The group that writes the last step's checkpoint; None before that step was committed."""
        return self._leader if self._last_made else None

    def is_stranded(self, started: Collection[int]) -> bool:
        """Return whether all groups that were started wait for a live group's state, and none is live any more."""
        standings = [self._groups[one].standing for one in started]
        have = any(NO_STATE not in self._groups[one].joined.values() for one in started)
        return bool(standings) and not self.live and set(standings) == {Standing.JOINING} and not have

    def coming(self, number: int, now_s: float) -> list[Action]:
        """Note that the processes of a group have been started."""
        self._groups[number] = Group(Standing.COMING, coming_since_s=now_s)
        return []

    def stop(self) -> list[Action]:
        """End the job with the next step that is committed."""
        self._stopping = True
        return []

    def heard(self, number: int, position: int, message: FromRank, now_s: float) -> list[Action]:
        """Handle a message from a rank."""
        group = self._groups[number]
        match message:
            case Join():
                return list(self._join(number, group, position, message.step, now_s))
            case Arrive():
                return list(self._arrive(number, group, position, message, now_s))
            case Vote():
                return list(self._vote(number, position, message, now_s))
            case AskStop():
                return self.stop()
            case Leave():
                self._over = True
                group.standing = Standing.ABSENT
                return []

    def lost_group(self, number: int, now_s: float) -> list[Action]:
        """Note that a group is gone."""
        group = self._groups[number]
        if group.standing is Standing.ABSENT:
            return []
        if group.standing is Standing.LIVE:
            self.lost += 1
            self._returning.add(number)
        if number in self._members:
            self._members = ()  # its successor must not find what it has left in the store of the connections
        self._groups[number] = Group()
        self._speculation.lost(number)
        actions: list[Action] = []
        attempt = self._attempt
        if attempt is not None and number in attempt.votes:
            del attempt.votes[number]
            attempt.shrunk = True
            actions += self._void(attempt, now_s)
            actions += self._close(attempt, now_s)
        return actions + list(self._start(now_s)) + list(self._open(now_s))

    def deadline_s(self) -> float | None:
        """Return when ``tick`` has something to do if no message comes; None if never."""
        times = [] if self._attempt is None else [self._attempt.until_s]
        times += [since_s + self._rules.timeout_s for _, since_s in self._awaited()]
        times += [since_s + self._start_s for _, since_s in self._coming()]
        if self._attempt is None and (due_s := self._speculation.due_s(self.live)) is not None:
            times.append(due_s)
        return min(times, default=None)

    def tick(self, now_s: float) -> list[Action]:
        """End groups that have not answered in time."""
        actions: list[Action] = []
        for number, since_s in list(self._awaited()):
            if now_s >= since_s + self._rules.timeout_s:
                actions += self._end(number, f"has not arrived at step {self.step + 1}", self._rules.timeout_s)
        for number, since_s in list(self._coming()):
            if now_s >= since_s + self._start_s:
                actions += self._end(number, "was not ready to take part", self._start_s)
        attempt = self._attempt
        if attempt is not None and now_s >= attempt.until_s:
            silent = [number for number, votes in attempt.votes.items() if len(votes) < self._rules.ranks]
            attempt.until_s = now_s + GRACE_S
            actions += self._void(attempt, now_s)
            for number in silent:
                what = f"has not ended the sum of step {attempt.quorum.step + 1}"
                actions += self._end(number, what, self._rules.timeout_s)
        return actions + list(self._open(now_s))

    def _awaited(self) -> Iterator[tuple[int, float]]:
        for number, group in self._groups.items():
            if group.standing is Standing.LIVE and group.awaited_since_s is not None and not group.ending:
                yield number, group.awaited_since_s

    def _coming(self) -> Iterator[tuple[int, float]]:
        for number, group in self._groups.items():
            if group.standing is Standing.COMING and not group.ending:
                yield number, group.coming_since_s

    @property
    def _start_s(self) -> float:
        return max(START_S, self._rules.timeout_s)

    def _end(self, number: int, what: str, limit_s: float) -> Iterator[Action]:
        if not self._groups[number].ending:
            self._groups[number].ending = True
            yield End(number, f"{what} within {limit_s:g} s")

    def _join(self, number: int, group: Group, position: int, step: int, now_s: float) -> Iterator[Action]:
        if self._over or self._finishing():
            yield Send(number, Over())
            return
        if group.standing is Standing.LIVE:  # its ranks could not get their state
            self._groups[number] = group = Group(Standing.COMING, coming_since_s=now_s)
            self._returning.add(number)
        group.joined[position] = step
        if len(group.joined) == self._rules.ranks:
            group.standing = Standing.JOINING
            if self.live:
                yield Say(f"replica group {number} is ready to come back: it joins after the present step")
            self._await_others(now_s)
            yield from self._start(now_s)
            yield from self._open(now_s)

    def _start(self, now_s: float) -> Iterator[Action]:
        """Begin together, with the state of a group that has one, once every group that was started has joined."""
        standings = [group.standing for group in self._groups.values()]
        joining = self._joining()
        source = max(joining, key=lambda one: (min(self._groups[one].joined.values()), -one), default=None)
        if Standing.LIVE in standings or Standing.COMING in standings or self._attempt is not None or source is None:
            return
        step = min(self._groups[source].joined.values())
        if step == NO_STATE:
            return
        if self.begun:
            yield Say(f"all replica groups go on together from step {step}")
        self.step, self._leader, self.begun = step, source, True
        self._speculation.begin(now_s)
        heal = self._heal(source, [one for one in joining if one != source])
        for number in joining:
            self._enliven(number)
            yield Send(number, Begin(step, heal, self._leader))
        self._returning.clear()
        yield from self._open(now_s)

    def _joining(self) -> list[int]:
        return [number for number, group in self._groups.items() if group.standing is Standing.JOINING]

    def _enliven(self, number: int) -> None:
        self._groups[number] = Group(Standing.LIVE, at=self.step)

    def _heal(self, source: int, targets: Iterable[int]) -> Heal | None:
        if not (found := tuple(targets)):
            return None
        self._heals += 1
        return Heal(self._heals, source, found)

    def _arrive(self, number: int, group: Group, position: int, message: Arrive, now_s: float) -> Iterator[Action]:
        if group.standing is not Standing.LIVE:
            return
        if message.step < self.step:  # it moves, and finds the mean of that step
            if message.share is None:
                group.at, group.awaited_since_s = max(group.at, message.step), None
            return
        if message.share is not None:
            self._speculation.heard(number, position, message)
            yield from self._open(now_s)
            return
        group.arrived[position] = message
        if len(group.arrived) == self._rules.ranks:
            group.at, group.awaited_since_s = self.step, None
            self._speculation.arrived(number, now_s)
            if number in self._returning:
                self._returning.discard(number)
                self.healed += 1
                yield Say(f"replica group {number} is back in step {self.step + 1}")
        self._await_others(now_s)
        yield from self._open(now_s)

    def _await_others(self, now_s: float) -> None:
        """Record that from now on others wait for the groups that have not arrived."""
        for other in self._groups.values():
            if other.awaited_since_s is None and len(other.arrived) < self._rules.ranks:
                other.awaited_since_s = now_s

    def _open(self, now_s: float) -> Iterator[Action]:
        """Decide which groups are in the step, if enough have arrived."""
        if self._attempt is not None:
            return
        live = self.live
        held = self._speculation.held(live)
        said = {one: self._groups[one].arrived[0] for one in live if self._has_arrived(one)}
        said |= {late: message for late, (_, message) in held.items()}
        wanted = max(1, min(len(live), self._rules.groups - self._rules.backup))
        if len(said) < wanted:
            yield from self._speculate(live, now_s)
            return
        ready = len(live) + len(self._joining())  # those that come back join after a step, so one has to be made
        if ready < self._rules.least:
            return
        members, contributors = tuple(live), tuple(one for one in live if one in said)
        if members != self._members:
            self._epoch, self._members = self._epoch + 1, members
        self._attempts += 1
        tokens, loss = tokens_and_loss({one: said[one] for one in contributors})
        holders = tuple((late, group) for late, (group, _) in held.items())
        quorum = Quorum(self._attempts, self._epoch, self.step, members, contributors, tokens, loss, holders)
        votes: dict[int, dict[int, bool]] = {one: {} for one in members}
        self._attempt = Attempt(quorum, votes, now_s + self._rules.timeout_s + GRACE_S)
        for one in members:
            yield Send(one, quorum)

    def _has_arrived(self, number: int) -> bool:
        return len(self._groups[number].arrived) == self._rules.ranks

    def _speculate(self, live: Sequence[int], now_s: float) -> Iterator[Action]:
        """Give the micro-batches of late groups to others."""
        for number, late in self._speculation.assign(live, now_s):
            yield Send(number, Speculate(self.step, late))

    def _vote(self, number: int, position: int, message: Vote, now_s: float) -> Iterator[Action]:
        attempt = self._attempt
        if attempt is None or attempt.quorum.attempt != message.attempt or number not in attempt.votes:
            return
        attempt.votes[number][position] = message.good
        if not message.good:
            yield from self._void(attempt, now_s)
        yield from self._close(attempt, now_s)

    def _void(self, attempt: Attempt, now_s: float) -> Iterator[Action]:
        """Tell members that an attempt does not count, so that none waits for the others."""
        if attempt.failed:
            return
        attempt.failed, attempt.until_s = True, now_s + GRACE_S
        self._members = ()  # connections of a sum that was broken off are not used again
        for number in attempt.votes:
            yield Send(number, Decision(attempt.quorum.attempt, commit=False))

    def _close(self, attempt: Attempt, now_s: float) -> Iterator[Action]:
        """End the attempt once every member that is left has voted."""
        if any(len(votes) < self._rules.ranks for votes in attempt.votes.values()):
            return
        self._attempt = None
        if not attempt.failed:
            yield from self._commit(attempt.quorum, now_s)
            return
        self._failures = 0 if attempt.shrunk else self._failures + 1
        if self._failures >= MAX_FAILURES:
            yield Fail(f"the sum of step {self.step + 1} over replica groups failed {MAX_FAILURES} times in a row")
            return
        yield from self._start(now_s)
        yield from self._open(now_s)

    def _commit(self, quorum: Quorum, now_s: float) -> Iterator[Action]:
        self.step, self._failures = quorum.step + 1, 0
        self._speculation.begin(now_s)
        over = self._finishing()
        self._over, self._last_made = self._over or over, over
        behind = self._behind()
        leader = self._groups[self._leader]
        first = next(one for one in quorum.contributors if one not in dict(quorum.held))
        if leader.standing is not Standing.LIVE or self._leader in behind:  # a late one writes later, of the same steps
            self._leader = first
        joining = self._joining()
        heal = None if over else self._heal(first, joining)
        decision = Decision(quorum.attempt, True, over, self._leader, heal, self.lost, self.healed)
        for number in quorum.members:
            yield Send(number, decision)
        for number in joining:
            if over:
                yield Send(number, Over())
                continue
            self._enliven(number)
            yield Send(number, Begin(self.step, heal, self._leader))
        for number in self.live:
            self._groups[number].arrived.clear()
        yield from self._leave_behind(behind, now_s)

    def _behind(self) -> list[int]:
        """Return groups that are too far behind the finished step to catch up with its mean."""
        return [number for number in self.live if self.step - self._groups[number].at > MAX_BEHIND]

    def _leave_behind(self, behind: Iterable[int], now_s: float) -> Iterator[Action]:
        """Continue without groups that need a whole state to catch up."""
        for number in behind:
            self._groups[number] = Group(Standing.COMING, coming_since_s=now_s)
            self._returning.add(number)
            yield Send(number, Behind(self.step))
            yield Say(f"replica group {number} is more than {MAX_BEHIND} steps behind: it gets a whole state")

    def _finishing(self) -> bool:
        return self.begun and (self._stopping or self.step >= self._rules.steps)
