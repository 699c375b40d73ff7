"""Handlers that open a round: cohort drawn, round prepared."""

from dataclasses import replace

from atoll.server.rounds.closing import judge
from atoll.server.rounds.effects import Effect, Fold, Invite, PrepareRound, StartDeadline
from atoll.server.rounds.errors import IllegalTransition
from atoll.server.rounds.events import CohortDrawn, RoundPrepared, Started
from atoll.server.rounds.lifecycle import advance
from atoll.server.rounds.roster import MAY_REPORT, Member, Roster
from atoll.server.rounds.run_state import Carried, Phase, RoundKind, RunState, RunStatus
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.weights import contributions, staleness_factor


def on_started(state: RunState, event: Started, now: float) -> Step:
    """Begin the first round, or pause if a pause was requested meanwhile."""
    del event
    return advance(replace(state, status=RunStatus.RUNNING), now)


def on_cohort_drawn(state: RunState, event: CohortDrawn, now: float) -> Step:
    """Fix the members and the carried updates of the round, and ask for its preparation."""
    rnd = live(state)
    drawn, required = {participant for participant, _ in event.members}, dict(event.required)
    taken, waiting = _take_carried(state, drawn) if rnd.kind is RoundKind.TRAIN else ((), state.carried)
    sampled = replace(
        rnd,
        phase=Phase.SAMPLED,
        sampled_at=now,
        roster=Roster.of(
            Member(participant, weight, at=now, required=required.get(participant, ""))
            for participant, weight in event.members
        ),
        carried=taken,
        eligible=event.eligible,
        sampler=event.sampler,
        seed=event.seed,
    )
    judged = judge(replace(state, round=sampled, carried=waiting), now)
    return judged.after(prepare(judged.state)) if live(judged.state).phase is Phase.SAMPLED else judged


def _take_carried(state: RunState, drawn: set[str]) -> tuple[tuple[Carried, ...], tuple[Carried, ...]]:
    """Split the waiting updates: those that the live round takes, and those that keep waiting.

    A participant is in a sum at most once: a drawn participant contributes afresh, and the oldest of several carried
    updates of one participant goes first.
    """
    exponent = state.policy.straggler.late.exponent
    taken: list[Carried] = []
    waiting: list[Carried] = []
    contributing = set(drawn)
    for c in sorted(state.carried, key=lambda c: (c.update.key, c.update.participant)):
        if c.update.participant in contributing:
            waiting.append(c)
            continue
        contributing.add(c.update.participant)
        staleness = state.version - c.version
        taken.append(replace(c, staleness=staleness, factor=staleness_factor(staleness, exponent)))
    return tuple(taken), tuple(waiting)


def prepare(state: RunState) -> PrepareRound:
    """Request the window and the grid of the sampled round."""
    rnd, policy = live(state), state.policy
    members = tuple((m.participant, m.declared_weight) for m in rnd.roster)
    bound = sum(max(1, policy.counted_weight(weight)) for _, weight in members)  # members with weight 0 only evaluate
    bound += sum(policy.counted_weight(c.update.weight) for c in rnd.carried)
    return PrepareRound(rnd.key, rnd.kind, members, rnd.carried, bound)


def on_round_prepared(state: RunState, event: RoundPrepared, now: float) -> Step:
    """Open the round: fold the carried updates, invite the members, start the deadline.

    Raises:
        IllegalTransition: a train round with members or carried updates comes without a grid.
    """
    rnd = live(state)
    anyone = len(rnd.roster) > 0 or rnd.carried != ()
    if rnd.kind is RoundKind.TRAIN and anyone and event.grid is None:
        raise IllegalTransition(state.run_id, rnd.phase, event.kind, "a train round is prepared with its grid")
    opened = replace(
        rnd,
        phase=Phase.OPEN,
        grid=event.grid if rnd.kind is RoundKind.TRAIN else None,
        window_s=event.window_s,
        deadline_at=event.deadline_at,
        opened_at=now,
    )
    after = replace(state, round=opened)
    return judge(after, now).after(*open_effects(after, event.window_s))


def open_effects(state: RunState, remaining_s: float) -> tuple[Effect, ...]:
    """The effects that an open round waits for: folds of its reports, invitations, the deadline."""
    rnd = live(state)
    folds = tuple(Fold(rnd.key, t.update, t.weight) for t in contributions(state.policy, rnd) if t.update is not None)
    expected = tuple(m.participant for m in rnd.roster if m.status in MAY_REPORT)
    invite = (Invite(rnd.key, expected),) if expected else ()
    return (*folds, *invite, StartDeadline(rnd.key, rnd.deadline_at, remaining_s))
