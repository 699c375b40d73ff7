"""Invariants after every step of a simulated run, computed without the engine's own arithmetic."""

from collections import Counter
from fractions import Fraction

from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    DropSpools,
    Effect,
    Event,
    ExtendRequested,
    LateMode,
    MemberStatus,
    Phase,
    Publish,
    RecordMember,
    RecordRound,
    RoundKind,
    RoundState,
    RunPolicy,
    RunState,
    RunStatus,
    Step,
    SumLost,
    UpdateRef,
    Weighting,
    planned_round,
    trained_before,
)
from tests.server.rounds.participants import Upload
from tests.server.rounds.simulation import World, value_of

AT_WORK = (MemberStatus.INVITED, MemberStatus.TRAINING)
FIXED = (Phase.AGGREGATED, Phase.CHARGED)


def reference_terms(policy: RunPolicy, rnd: RoundState) -> dict[str, tuple[int, UpdateRef | None]]:
    """Return each participant's contribution as (integer weight, update). Fails if one would count twice."""
    terms: dict[str, tuple[int, UpdateRef | None]] = {}

    def units(examples: int) -> int:
        if rnd.kind is RoundKind.TRAIN and policy.weighting is Weighting.UNIFORM:
            return 1
        return min(examples, policy.max_weight)

    scale = 2**rnd.grid.weight_shift if rnd.grid else 1
    for m in rnd.roster:
        if m.status is MemberStatus.REPORTED:
            assert m.participant not in terms
            terms[m.participant] = (units(m.reported_weight) * scale, m.update)
    for c in rnd.carried:
        assert c.update.participant not in terms, "a participant is twice in one sum"
        discount = (1 + (rnd.version - c.version)) ** -policy.straggler.late.exponent
        exact = Fraction(discount) * units(c.update.weight) * scale
        terms[c.update.participant] = (max(1, round(exact)), c.update)
    return terms


def reference_digest(terms: dict[str, tuple[int, UpdateRef | None]]) -> str:
    total = sum(weight * (value_of(ref) if ref else 1) for weight, ref in terms.values())
    return f"sum {total} of {','.join(sorted(terms))}"


class Invariants:
    """Checks a world after every step, and remembers which entries of the table its steps have taken."""

    def __init__(self) -> None:
        self.released: dict[Upload, str] = {}

    def check(self, world: World, before: RunState, event: Event, result: Step) -> None:
        after = result.state
        assert after is before or after != before, f"{event} changed nothing but made a new state"
        goes_on = not before.status.ended or isinstance(event, ExtendRequested)
        assert after is before or goes_on, f"{event} changed a run that had ended"
        self.check_set_is_fixed(before, event, after)
        for effect in result.effects:
            self.check_effect(world, after, effect)
        if after is not before:
            if after.round is not None:
                reference_terms(world.policy, after.round)
                self.check_number(world, after, after.round)
            self.check_bounded(world.policy, after)
            self.check_nothing_lost(world, after)

    @staticmethod
    def check_number(world: World, state: RunState, rnd: RoundState) -> None:
        """The number that a round was planned with gives its version; without an extension it is the round's own."""
        planned = planned_round(state.policy, rnd)
        assert rnd.version == trained_before(state.policy.evaluate_every, planned)
        if not any(isinstance(event, ExtendRequested) for event, _ in world.durable.log):
            assert rnd.key.round == planned

    def check_set_is_fixed(self, before: RunState, event: Event, after: RunState) -> None:
        """From AGGREGATED on, neither the set nor its sum changes; but a secret draw's sum that is lost shrinks."""
        a, b = before.round, after.round
        if a is None or b is None or a.key != b.key or a.phase not in FIXED or b.phase is Phase.ABANDONED:
            return
        if isinstance(event, SumLost) and a.phase is Phase.AGGREGATED and b.phase is Phase.CLOSING:
            assert before.policy.secret_draw
            assert reference_terms(after.policy, b).items() < reference_terms(before.policy, a).items()
            return
        assert a.roster.reported == b.roster.reported
        assert (a.digest, a.total_weight, a.carried) == (b.digest, b.total_weight, b.carried)

    def check_effect(self, world: World, state: RunState, effect: Effect) -> None:
        rnd = state.round
        match effect:
            case Aggregate():
                assert rnd is not None
                assert rnd.phase is Phase.CLOSING
                expected = reference_terms(world.policy, rnd)
                assert {t.participant: (t.weight, t.update) for t in effect.contributions} == expected
                assert effect.total_weight == sum(weight for weight, _ in expected.values())
                assert rnd.grid is None or effect.total_weight < 2**rnd.grid.weight_total_bits, "the sum may overflow"
            case Publish():
                assert rnd is not None
                assert rnd.phase is Phase.CHARGED
                assert world.durable.ledger[effect.key] == effect.digest == rnd.digest
            case RecordRound():
                self.check_record(world, effect.round)
            case RecordMember():
                assert effect.member.status not in AT_WORK
                assert effect.member.detail
            case DropSpools():
                self.check_keeps(state, effect)
            case _:
                pass

    def check_record(self, world: World, rnd: RoundState) -> None:
        assert rnd.phase in (Phase.RELEASED, Phase.ABANDONED)
        assert rnd.reason
        for m in rnd.roster:
            assert m.status not in AT_WORK
            assert m.status is MemberStatus.REPORTED or m.detail, f"{m.participant} did not count, without a reason"
        if rnd.phase is Phase.ABANDONED:
            assert rnd.roster.reported == 0
            return
        terms = reference_terms(world.policy, rnd)
        assert world.durable.published[rnd.key] == reference_digest(terms), "the sum is not the reference's"
        for _, ref in terms.values():
            if ref is not None:
                assert (ref.key, ref.participant) not in self.released, "an update is in two released sums"
                self.released[ref.key, ref.participant] = ref.digest

    def check_keeps(self, state: RunState, effect: DropSpools) -> None:
        if not state.status.ended:
            if state.round is not None and state.round.phase not in (Phase.RELEASED, Phase.ABANDONED):
                assert effect.through < state.round.key, "the uploads of the round in work are deleted"
            assert {(c.update.key, c.update.participant) for c in state.carried} <= set(effect.keep)

    def check_bounded(self, policy: RunPolicy, state: RunState) -> None:
        straggler = policy.straggler
        models = straggler.late.max_staleness + 2 if straggler.late.mode is LateMode.CARRY else 1
        assert len(state.past) <= models * straggler.max_attempts + 1
        remembered = {p.key: p.roster for p in state.past} | (
            {state.round.key: state.round.roster} if state.round else {}
        )
        for c in state.carried:
            assert remembered[c.update.key].get(c.update.participant) is not None
        assert not (state.carried and state.status.ended)

    def check_nothing_lost(self, world: World, state: RunState) -> None:
        """Each acknowledged update is in a sum, waits for one, or has a recorded reason."""
        rnd = state.round
        alive: dict[Upload, str] = {(c.update.key, c.update.participant): c.update.digest for c in state.carried}
        live = None
        if rnd is not None and rnd.phase not in (Phase.RELEASED, Phase.ABANDONED):
            live = rnd.key
            alive |= {(c.update.key, c.update.participant): c.update.digest for c in rnd.carried}
        for upload, ref in world.durable.acknowledged.items():
            key, participant = upload
            if alive.get(upload) == ref.digest or self.released.get(upload) == ref.digest:
                continue
            member = rnd.roster.get(participant) if rnd and key == live else world.durable.members.get(upload)
            assert member is not None, f"no trace of {ref}"
            if live == key and member.status is MemberStatus.REPORTED:
                assert member.update == ref
                continue
            assert member.status not in (*AT_WORK, MemberStatus.REPORTED), f"{member} counts nowhere"
            assert member.update is None, f"{member} is said to be carried, and is not"
            assert member.detail


def check_end(world: World, checked: Invariants) -> None:
    """Check the invariants of a run that has ended."""
    state, durable = world.state, world.durable
    assert state.status.ended
    assert state.reason
    released = {k for k, r in durable.rounds.items() if r.phase is Phase.RELEASED}
    assert released <= durable.published.keys()
    for key in durable.published.keys() - released:  # published, and the run failed for good before it was told so
        assert (state.status, key) == (RunStatus.FAILED, max(durable.rounds))
    train = [k for k in released if durable.rounds[k].kind is RoundKind.TRAIN]
    assert len(train) == state.version == state.tally.trained
    assert state.model == (durable.published[max(train)] if train else "m0")
    assert set(durable.published) <= set(durable.ledger)
    summed = Counter(event.key for event, _ in durable.log if isinstance(event, Aggregated))
    lost = Counter(event.key for event, _ in durable.log if isinstance(event, SumLost))
    assert all(times <= 1 + lost[key] for key, times in summed.items()), "one round was summed twice"
    if state.status is RunStatus.FINISHED:
        assert state.version == state.policy.rounds or state.stopping
    assert not checked.released.keys() - durable.spools.keys() - durable.acknowledged.keys()
