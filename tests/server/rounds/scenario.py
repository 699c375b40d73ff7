"""Helpers that drive the engine through a run: `Story` steps it and keeps the last step's effects."""

from typing import TypeVar

from atoll.server.rounds import (
    Accepted,
    Aggregate,
    Aggregated,
    Charged,
    CohortDrawn,
    Effect,
    Event,
    LateMode,
    LatePolicy,
    Member,
    MemberStatus,
    Patience,
    Published,
    Reported,
    RetryDue,
    RoundGrid,
    RoundKey,
    RoundKind,
    RoundPrepared,
    RoundState,
    RunPolicy,
    RunState,
    Situation,
    Started,
    StragglerPolicy,
    UpdateRef,
    initial,
    situation,
    step,
)

E = TypeVar("E")
GRID = RoundGrid(fraction_bits=20, max_abs=32.0, weight_shift=2, weight_total_bits=24)


def policy(
    cohort_size: int = 2,
    *,
    rounds: int = 2,
    over_selection: float = 1.5,
    quorum: int = 1,
    late: LatePolicy | None = None,
    patience: Patience = Patience.GOAL,
    refused_count: bool = False,
    max_attempts: int = 2,
    evaluate_every: int = 0,
    final_evaluation: bool = False,
) -> RunPolicy:
    """A goal of two, three invited, a quorum of one, two attempts at a round, and two rounds."""
    straggler = StragglerPolicy(
        cohort_size,
        over_selection,
        patience,
        quorum,
        refused_count,
        late or LatePolicy(),
        max_attempts,
        retry_delay_s=5.0,
    )
    return RunPolicy(rounds, straggler, evaluate_every, final_evaluation)


CARRY = LatePolicy(LateMode.CARRY, max_staleness=1, exponent=1.0)


class Story:
    """A run, played event by event."""

    def __init__(self, rules: RunPolicy | None = None) -> None:
        self.state: RunState = initial("rstory", rules or policy(), "m0")
        self.effects: tuple[Effect, ...] = ()
        self.now = 100.0
        self._asked: list[Aggregate] = []

    def on(self, *events: Event) -> "Story":
        for event in events:
            self.now += 1
            result = step(self.state, event, self.now)
            self.state, self.effects = result.state, result.effects
            self._asked += [effect for effect in result.effects if isinstance(effect, Aggregate)]
        return self

    def ignores(self, event: Event) -> bool:
        """Whether the event changes nothing; its effects are kept."""
        before = self.state
        return self.on(event).state is before

    @property
    def round(self) -> RoundState:
        assert self.state.round is not None
        return self.state.round

    @property
    def key(self) -> RoundKey:
        return self.round.key

    def stands(self) -> Situation:
        return situation(self.state)

    def effect(self, kind: type[E]) -> E:
        """The one effect of that kind in the last step."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert len(found) == 1, f"{len(found)} of {kind.__name__} in {self.effects}"
        return found[0]

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]

    def member(self, participant: str) -> Member:
        member = self.round.roster.get(participant)
        assert member is not None
        return member

    def status(self, participant: str) -> MemberStatus:
        return self.member(participant).status

    # --- the ordinary course ---

    def drawn(self, *participants: str, weight: int = 10) -> CohortDrawn:
        return CohortDrawn(self.key, tuple((p, weight) for p in participants), 9, "uniform", 7)

    def prepared(self) -> RoundPrepared:
        return RoundPrepared(self.key, 30.0, self.now + 30.0, GRID if self.round.kind is RoundKind.TRAIN else None)

    def report(self, participant: str, weight: int = 10, digest: str = "", key: RoundKey | None = None) -> Reported:
        key = key or self.key
        if self.round.kind is RoundKind.EVALUATE and key == self.key:
            return Reported(key, participant, None, weight, (("accuracy", 0.5),))
        ref = UpdateRef(key, participant, digest or f"{key}/{participant}", weight, "n0")
        return Reported(key, participant, ref, weight)

    def open(self, *participants: str) -> "Story":
        """Start if necessary, draw these members and open the round."""
        if self.stands() is Situation.NEW:
            self.on(Started())
        return self.on(self.drawn(*(participants or ("pa", "pb", "pc")))).on(self.prepared())

    def training(self, *participants: str) -> "Story":
        """Open the round and let all members accept."""
        self.open(*participants)
        return self.on(*(Accepted(self.key, m.participant) for m in self.round.roster))

    def closing(self) -> "Story":
        """Open the round with pa, pb and pc; pa and pb report, which is the goal."""
        return self.training().on(self.report("pa"), self.report("pb"))

    @property
    def asked(self) -> Aggregate:
        """The latest Aggregate."""
        return self._asked[-1]

    def summed(self, digest: str = "m1") -> Aggregated:
        """The right answer to the latest Aggregate."""
        asked = self.asked
        return Aggregated(asked.key, asked.total_weight, len(asked.contributions), digest)

    def aggregated(self) -> "Story":
        return self.closing().on(self.summed())

    def charged(self) -> "Story":
        return self.aggregated().on(Charged(self.key))

    def release(self, digest: str = "m1") -> "Story":
        """Play from CLOSING to the end of the round."""
        return self.on(self.summed(digest), Charged(self.key), Published(self.key))

    def retry(self) -> "Story":
        return self.on(RetryDue(self.key))
