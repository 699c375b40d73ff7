"""Handlers from the sum to the published result, and of the retry of an abandoned attempt."""

from dataclasses import replace

from atoll.server.rounds.closing import abandon
from atoll.server.rounds.effects import ChargeAndStore, Effect, Publish, RecordMember
from atoll.server.rounds.errors import MismatchedSum
from atoll.server.rounds.events import Aggregated, Charged, Published, Rejected, RetryDue, SumLost
from atoll.server.rounds.judging import judged, stop_reason
from atoll.server.rounds.lifecycle import advance, amend, archive, end_run, member_of, retry
from atoll.server.rounds.member_events import sum_anew, without
from atoll.server.rounds.roster import MemberStatus
from atoll.server.rounds.run_state import Phase, RoundKind, RunState, RunStatus
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.updates import Metrics
from atoll.server.rounds.weights import contributions, total_weight


def on_aggregated(state: RunState, event: Aggregated, now: float) -> Step:
    """Accept the sum: from here on the set is fixed.

    Raises:
        MismatchedSum: the sum is over another set than the round's.
    """
    rnd = live(state)
    terms = contributions(state.policy, rnd)
    if event.updates > len(terms):
        return Step(state)  # this sum was requested before a rejection shrank the set; the newer one will follow
    if (event.updates, event.total_weight) != (len(terms), total_weight(terms)):
        raise MismatchedSum(
            f"run {state.run_id}, round {rnd.key}: the sum has {event.updates} contributions of total weight "
            f"{event.total_weight}, the round {len(terms)} of {total_weight(terms)}"
        )
    summed = replace(
        rnd, phase=Phase.AGGREGATED, total_weight=event.total_weight, digest=event.digest, aggregated_at=now
    )
    after = replace(state, round=summed)
    return Step(after, (charge(after),))


def charge(state: RunState) -> ChargeAndStore:
    """Request the charge of the aggregated round and the storing of its result."""
    rnd = live(state)
    return ChargeAndStore(rnd.key, rnd.kind, rnd.digest)


def on_aggregated_again(state: RunState, event: Aggregated, now: float) -> Step:
    """Ignore a repeated sum, or a sum that was requested before a rejection.

    Raises:
        MismatchedSum: the same set gave another result.
    """
    del now
    rnd = live(state)
    same = (event.total_weight, event.digest) == (rnd.total_weight, rnd.digest)
    if same or event.updates > rnd.counted:
        return Step(state)
    raise MismatchedSum(
        f"run {state.run_id}, round {rnd.key}: aggregated to {rnd.digest} of weight {rnd.total_weight}, "
        f"then to {event.digest} of weight {event.total_weight}"
    )


def on_sum_lost(state: RunState, event: SumLost, now: float) -> Step:
    """Abandon the attempt: nothing of it was charged or released, and the next attempt draws again.

    Under a secret draw the same round is instead summed without the lost updates. Only drawn members have updates to
    lose, so a second draw would depend on the first, which the privacy account does not cover.
    """
    if not state.policy.secret_draw:
        return abandon(state, event.reason, MemberStatus.STOPPED, now)
    closing = replace(live(state), phase=Phase.CLOSING, total_weight=0, digest="", aggregated_at=0.0)
    shrunk = Step(replace(state, round=closing))
    for update in event.lost:
        removed = without(shrunk.state, Rejected(update.key, update.participant, event.reason), now)
        if removed is not None:
            shrunk = removed.after(*shrunk.effects)
    return sum_anew(shrunk, now) if shrunk.effects else Step(state)


def on_charged(state: RunState, event: Charged, now: float) -> Step:
    """The charge is durable: judge the model that the round handed out, and publish the result."""
    judged_state = _judge(state, event.metrics)
    after = replace(judged_state, round=replace(live(state), phase=Phase.CHARGED, charged_at=now))
    return Step(after, (publish(after),))


def on_charged_paused(state: RunState, event: Charged, now: float) -> Step:
    """The charge became durable after the run had paused for budget: publish the result, then pause."""
    if live(state).phase is not Phase.AGGREGATED:
        return Step(state)
    return on_charged(replace(state, status=RunStatus.RUNNING, pause_requested=True, reason=""), event, now)


def publish(state: RunState) -> Publish:
    """Request that the charged round's result be made visible."""
    rnd = live(state)
    return Publish(rnd.key, rnd.kind, rnd.digest)


def on_published(state: RunState, event: Published, now: float) -> Step:
    """The round is released: continue, or end the run if it was cancelled meanwhile or its stop rule applies."""
    recorded = _record_carried(state, now)
    released = _judge(_count(recorded.state), event.metrics)
    archived = archive(released, replace(live(released), phase=Phase.RELEASED, ended_at=now))
    after = archived.state
    if after.cancel_requested is not None:
        then = end_run(after, RunStatus.CANCELLED, after.cancel_requested, now)
    else:
        then = advance(after, now)
    return then.after(*recorded.effects, *archived.effects)


def _count(state: RunState) -> RunState:
    rnd, tally = live(state), state.tally
    tally = replace(tally, contributions=tally.contributions + rnd.counted)
    if rnd.kind is RoundKind.EVALUATE:
        return replace(state, tally=replace(tally, evaluated=tally.evaluated + 1))
    tally = replace(tally, trained=tally.trained + 1)
    return replace(state, tally=tally, version=state.version + 1, model=rnd.digest)


def _judge(state: RunState, metrics: Metrics) -> RunState:
    """Track the best model, and decide whether the run ends early."""
    policy, version = state.policy, live(state).version
    best = state.best if policy.best is None else judged(state.best, policy.best, version, metrics)
    if policy.stop is None:
        return replace(state, best=best)
    rule = policy.stop
    progress = judged(state.progress, rule.criterion, version, metrics, rule.min_delta)
    return replace(state, best=best, progress=progress, stopping=state.stopping or stop_reason(rule, progress))


def _record_carried(state: RunState, now: float) -> Step:
    """Record for each carried update in the sum which round took it."""
    rnd = live(state)
    effects: list[Effect] = []
    for c in rnd.carried:
        detail = f"late; counted in round {rnd.key.round + 1} with staleness {c.staleness}"
        member = replace(member_of(state, c), detail=detail, at=now)
        state = amend(state, c.update.key, member)
        effects.append(RecordMember(c.update.key, member))
    return Step(state, tuple(effects))


def on_retry_due(state: RunState, event: RetryDue, now: float) -> Step:
    """The delay after an abandoned attempt is over: begin the next one."""
    del event
    return retry(state, now)
