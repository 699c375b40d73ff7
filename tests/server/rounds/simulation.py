"""A small shell around the engine with injected faults: crashes, duplicates, reordering, losses, clock jumps.

`World` separates what is durable (the event log, uploads, the ledger, published models, the history) from what a
crash loses (the state in memory, timers, answers under way, messages in flight). Participants are honest but clumsy.
After every step `invariants.check` looks at both.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    BudgetSpent,
    CancelRequested,
    ChargeAndStore,
    Charged,
    CohortDrawn,
    Contribution,
    DeadlinePassed,
    DrawCohort,
    DropSpools,
    Effect,
    EffectFailed,
    Event,
    ExtendRequested,
    Finish,
    Fold,
    Invite,
    Member,
    Patience,
    PauseRequested,
    Phase,
    PrepareRound,
    Publish,
    Published,
    Receipt,
    RecordMember,
    RecordRound,
    Rejected,
    Reported,
    ResumeRequested,
    RetryDue,
    RoundGrid,
    RoundKey,
    RoundKind,
    RoundPrepared,
    RoundState,
    RunPolicy,
    RunState,
    RunStatus,
    StartDeadline,
    Started,
    StartRetry,
    Step,
    Stop,
    SumLost,
    UpdateRef,
    Verdict,
    initial,
    replay,
    resume,
    step,
)
from atoll.server.rounds.weights import contributions
from tests.server.rounds.participants import Participants, Upload

RUN = "raaaaaaaaaaaa"


class Crash(Exception):  # noqa: N818 - not an error of the code under test
    """The server process dies at this point."""


@dataclass(frozen=True)
class Faults:
    """Probabilities of the faults."""

    crash: float = 0.02
    lose: float = 0.15
    duplicate: float = 0.15
    misbehave: float = 0.3
    meddle: float = 0.04
    effect_fails: float = 0.002
    sum_lost: float = 0.01  # before its charge: a server was restored from a backup
    impatience: float = 0.06  # a timer fires before the messages that would have been in time


CALM = Faults(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass
class Durable:
    """The state that survives a crash."""

    log: list[tuple[Event, float]] = field(default_factory=list)
    spools: dict[Upload, UpdateRef] = field(default_factory=dict)
    ledger: dict[RoundKey, str] = field(default_factory=dict)  # charged sums by digest
    lost: dict[tuple[RoundKey, str], SumLost] = field(default_factory=dict)  # sums that cannot be made again
    published: dict[RoundKey, str] = field(default_factory=dict)
    rounds: dict[RoundKey, RoundState] = field(default_factory=dict)
    members: dict[Upload, Member] = field(default_factory=dict)
    acknowledged: dict[Upload, UpdateRef] = field(default_factory=dict)


@dataclass
class Volatile:
    """The state that a crash loses."""

    state: RunState
    answers: list[Callable[[], Event | None]] = field(default_factory=list)
    timers: list[Event] = field(default_factory=list)
    inbox: list[Event] = field(default_factory=list)


def value_of(ref: UpdateRef) -> int:
    """The one number that this update consists of."""
    return zlib.crc32(ref.digest.encode()) % 1000


def digest_of(terms: tuple[Contribution, ...]) -> str:
    """Return the name of the sum over these contributions; equal sets have equal names in any order."""
    total = sum(t.weight * (value_of(t.update) if t.update else 1) for t in terms)
    return f"sum {total} of {','.join(sorted(t.participant for t in terms))}"


class World:
    """One run, its shell and its participants."""

    def __init__(
        self,
        seed: int,
        policy: RunPolicy,
        population: int,
        faults: Faults,
        checks: "list[Check]",
        crash_at: int | None = None,
        extensions: tuple[int, ...] = (),
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.policy = policy
        self.population = tuple(f"p{i}" for i in range(population))
        self.faults = faults
        self.crash_at = crash_at
        self.extensions = extensions
        self.crash_points = 0
        self.restarts = 0
        self.now = 1e9
        self.durable = Durable()
        self.start = initial(RUN, policy, "m0")
        self.volatile = Volatile(self.start)
        self.participants = Participants(self.rng, self.durable.spools)
        self.checks = checks
        self.volatile.inbox.append(Started())

    @property
    def state(self) -> RunState:
        return self.volatile.state

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def maybe_crash(self) -> None:
        self.crash_points += 1
        if self.crash_points == self.crash_at or self.chance(self.faults.crash):
            raise Crash

    # --- the shell: one event at a time ---

    def post(self, event: Event) -> None:
        """Step, persist with the records, adopt, do the effects; a crash may happen between any two of these."""
        try:
            before = self.state
            result = step(before, event, self.now)
            self.maybe_crash()
            if result.state is not before:
                self.persist(event, result)
            for check in self.checks:
                check(self, before, event, result)
            self.maybe_crash()
            self.volatile.state = result.state
            for effect in result.effects:
                self.do(effect)
                self.maybe_crash()
        except Crash:
            self.restart()

    def persist(self, event: Event, result: Step) -> None:
        self.durable.log.append((event, self.now))
        for effect in result.effects:
            if isinstance(effect, RecordRound):
                self.durable.rounds[effect.round.key] = effect.round
                for member in effect.round.roster:
                    self.durable.members[effect.round.key, member.participant] = member
            elif isinstance(effect, RecordMember):
                self.durable.members[effect.key, effect.member.participant] = effect.member
            elif isinstance(effect, Receipt) and effect.verdict in (Verdict.COUNTED, Verdict.CARRIED):
                assert isinstance(event, Reported)
                if event.update is not None:
                    self.durable.acknowledged[effect.key, effect.participant] = event.update

    def restart(self) -> None:
        """Lose the state in memory; connections break, so messages in flight are lost too."""
        self.restarts += 1
        self.volatile = Volatile(replay(self.start, self.durable.log))
        if self.state.status is RunStatus.SUBMITTED:
            self.volatile.inbox.append(Started())
        try:
            for effect in resume(self.state, self.now):
                self.do(effect)
                self.maybe_crash()
        except Crash:
            self.restart()

    def do(self, effect: Effect) -> None:
        """Act on one effect; slow ones answer later, in any order."""
        handler = _DO.get(type(effect))
        if handler is not None:
            handler(self, effect)

    # --- time and chance ---

    def tick(self) -> bool:
        """Let one event happen; return False when only an operator's commands are left."""
        if self.faults is CALM:
            self.now += 1.0
        else:
            self.now += self.rng.choice((0.1, 1.0, 60.0, -3600.0, 3600.0))
            rnd = self.state.round
            rare = rnd is not None and rnd.phase is Phase.SAMPLED and rnd.carried != ()
            if self.chance(self.faults.meddle * (8 if rare else 1)):
                self.post(self.meddle())
                return True
        live = self.volatile
        ready = [
            (weight, act)
            for weight, act, something in (
                (1.0, self.deliver, live.inbox),
                (0.5, self.answer, live.answers),
                (0.1, self.send_again, self.participants.unacknowledged),
                (self.faults.impatience, self.fire, live.timers),
            )
            if something
        ]
        if not ready:
            return False
        if self.faults is CALM:
            ready[0][1]()
        else:
            weights, acts = zip(*ready, strict=True)
            self.rng.choices(acts, weights)[0]()
        return True

    def meddle(self) -> Event:
        """Return an action that an operator, a check of updates or a failing disk may cause at any moment."""
        rnd, acknowledged = self.state.round, list(self.durable.acknowledged)
        choices: list[Event] = [Started()]
        if not self.state.status.ended:
            choices += [PauseRequested(), PauseRequested(), ResumeRequested()]
        if acknowledged:
            taken = [(c.update.key, c.update.participant) for c in rnd.carried] if rnd else []
            choices += [Rejected(*self.rng.choice(taken or acknowledged), "found unusable") for _ in range(2)]
            choices.append(Rejected(*self.rng.choice(acknowledged), "another upload refused", unreported=True))
        if rnd is not None:
            keys = (rnd.key, *list(self.durable.rounds)[-1:])
            choices += [BudgetSpent(key, "the limit is reached") for key in keys]
            if rnd.phase is not Phase.AGGREGATED:  # a sum that waits for its charge is lost by ``charge`` alone
                choices.append(SumLost(self.rng.choice(keys), "told again", ()))
        if self.chance(0.15):
            choices = [CancelRequested("the operator said so")]
        elif rnd is not None and self.chance(0.15):
            choices = [
                EffectFailed(self.rng.choice((rnd.key, *self.durable.rounds)), "RecordRound", "the disk is gone")
            ]
        return self.rng.choice(choices)

    def send_again(self) -> None:
        self.volatile.inbox.append(self.rng.choice(list(self.participants.unacknowledged.values())))

    def deliver(self) -> None:
        inbox = self.volatile.inbox
        i = self.rng.randrange(len(inbox))
        event = inbox[i] if self.chance(self.faults.duplicate) else inbox.pop(i)
        if isinstance(event, Started) or not self.chance(self.faults.lose):
            self.post(event)

    def answer(self) -> None:
        answers = self.volatile.answers
        i = self.rng.randrange(len(answers))
        work = answers[i] if self.chance(self.faults.duplicate) else answers.pop(i)
        try:
            event = work()
            self.maybe_crash()
        except Crash:
            self.restart()
            return
        if event is not None:
            self.post(event)

    def fire(self) -> None:
        timers = self.volatile.timers
        i = self.rng.randrange(len(timers))
        self.post(timers[i] if self.chance(self.faults.duplicate) else timers.pop(i))

    # --- answers ---

    def later(self, key: RoundKey, effect: Effect, work: Callable[[], Event | None]) -> None:
        if self.chance(self.faults.effect_fails):
            failed = EffectFailed(key, type(effect).__name__, "the disk is gone")
            self.volatile.answers.append(lambda: failed)
        else:
            self.volatile.answers.append(work)

    def draw(self, effect: DrawCohort) -> None:
        def work() -> Event:
            # A draw is a function of seed and planned round, so a crash repeats it.
            rng = Random(f"{self.seed}/{effect.planned_round}.{effect.key.attempt}")
            clumsy = self.chance(self.faults.misbehave)
            online = [p for p in self.population if clumsy or p not in effect.excluded]
            if self.policy.straggler.patience is not Patience.GOAL:
                rate = self.policy.straggler.cohort_size / len(self.population)
                chosen = [p for p in online if rng.random() < rate]
            else:
                short = rng.randrange(2) if clumsy else 0
                chosen = rng.sample(online, max(0, min(effect.invited, len(online)) - short))
            members = tuple((p, rng.randint(1, 9)) for p in chosen)
            return CohortDrawn(effect.key, members, len(online), "uniform", self.seed)

        self.later(effect.key, effect, work)

    def prepare(self, effect: PrepareRound) -> None:
        shift = effect.key.round % 3
        bits = (effect.total_weight << shift).bit_length()
        grid = RoundGrid(20, 32.0, shift, bits) if effect.kind is RoundKind.TRAIN else None
        self.later(effect.key, effect, lambda: RoundPrepared(effect.key, 30.0, self.now + 30.0, grid))

    def fold(self, effect: Fold) -> None:
        ref = effect.update
        assert self.durable.spools[ref.key, ref.participant] == ref, "an update to be folded was deleted"
        if ref.digest in self.participants.bad:
            self.volatile.answers.append(lambda: Rejected(ref.key, ref.participant, "not finite"))

    def aggregate(self, effect: Aggregate) -> None:
        for term in effect.contributions:
            if term.update is not None:
                self.fold(Fold(effect.key, term.update, term.weight))
        if any(t.update is not None and t.update.digest in self.participants.bad for t in effect.contributions):
            return  # each fold has said so itself
        done = Aggregated(effect.key, effect.total_weight, len(effect.contributions), digest_of(effect.contributions))
        self.later(effect.key, effect, lambda: done)

    def charge(self, effect: ChargeAndStore) -> None:
        def work() -> Event:
            lost, rnd = self.durable.lost, self.state.round
            if effect.key not in self.durable.ledger and rnd is not None and self.chance(self.faults.sum_lost):
                updates = [c.update for c in contributions(self.policy, rnd) if c.update is not None]
                if updates and (rnd.key, rnd.digest) == (effect.key, effect.digest):
                    some = tuple(self.rng.sample(updates, self.rng.randint(1, len(updates))))
                    lost[effect.key, effect.digest] = SumLost(effect.key, "updates of its sum cannot be read", some)
            if (effect.key, effect.digest) in lost:
                return lost[effect.key, effect.digest]
            charged = self.durable.ledger.setdefault(effect.key, effect.digest)
            assert charged == effect.digest, "two sums were charged for one round"
            return Charged(effect.key)

        self.later(effect.key, effect, work)

    def publish(self, effect: Publish) -> None:
        def work() -> Event:
            logged = {event.key for event, _ in self.durable.log if isinstance(event, Charged)}
            assert effect.key in logged, "published without a charge on record"
            assert self.durable.ledger[effect.key] == effect.digest
            assert self.durable.published.setdefault(effect.key, effect.digest) == effect.digest
            return Published(effect.key)

        self.later(effect.key, effect, work)

    def drop_spools(self, effect: DropSpools) -> None:
        for upload in [u for u in self.durable.spools if u[0] <= effect.through and u not in effect.keep]:
            del self.durable.spools[upload]

    def finish(self, effect: Finish) -> None:
        assert effect.status.ended
        assert effect.reason

    def invite(self, effect: Invite) -> None:
        for participant in effect.participants:
            if not self.chance(self.faults.lose):
                clumsy = self.chance(self.faults.misbehave)
                self.volatile.inbox.extend(self.participants.behave(self.state, effect.key, participant, clumsy))

    def receipt(self, effect: Receipt) -> None:
        if not self.chance(self.faults.lose):
            self.participants.forget(effect.key, effect.participant)

    def stop(self, effect: Stop) -> None:
        for participant in effect.participants:
            self.participants.forget(effect.key, participant)

    def extend(self) -> bool:
        """Extend the run that has ended, if that is still to be done; an operator repeats what a crash has lost."""
        done = sum(isinstance(event, ExtendRequested) for event, _ in self.durable.log)
        if done == len(self.extensions) or self.state.status is RunStatus.FAILED:
            return False
        self.post(ExtendRequested(self.extensions[done]))
        return True

    def run(self, fault_ticks: int, limit: int) -> RunStatus:
        """Run with faults for a while, then without until the run has ended.

        Raises:
            AssertionError: the run is stuck.
        """
        for _ in range(fault_ticks):
            if not self.state.status.ended or self.volatile.inbox:
                self.tick()
            elif not self.extend():
                break
        self.faults = CALM
        for _ in range(limit):
            if self.state.status.ended:
                if not self.extend():
                    return self.state.status
            elif self.state.status is RunStatus.PAUSED:
                self.post(ResumeRequested())
            elif not self.tick():
                raise AssertionError(f"stuck: {self.state}")
        raise AssertionError(f"no end after {limit} calm ticks: {self.state}")


Check = Callable[[World, RunState, Event, Step], None]

_DO: dict[type, Callable[[World, Effect], None]] = {}


def _on(kind: type, act: Callable[..., None]) -> None:
    _DO[kind] = act


_on(DrawCohort, World.draw)
_on(PrepareRound, World.prepare)
_on(Fold, World.fold)
_on(Aggregate, World.aggregate)
_on(ChargeAndStore, World.charge)
_on(Publish, World.publish)
_on(DropSpools, World.drop_spools)
_on(Finish, World.finish)
_on(Invite, World.invite)
_on(Receipt, World.receipt)
_on(StartDeadline, lambda world, effect: world.volatile.timers.append(DeadlinePassed(effect.key)))
_on(StartRetry, lambda world, effect: world.volatile.timers.append(RetryDue(effect.key)))
_on(Stop, World.stop)
