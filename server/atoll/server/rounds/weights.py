"""The weight of each contribution: an integer, so that the sum does not depend on the order."""

from decimal import Context, Decimal
from fractions import Fraction

from atoll.server.rounds.policy import RunPolicy
from atoll.server.rounds.roster import MemberStatus
from atoll.server.rounds.run_state import Contribution, RoundKind, RoundState

# libm's pow may differ in the last bit from machine to machine, and a replay elsewhere must give the same integers.
_DECIMAL = Context(prec=28)


def staleness_factor(staleness: int, exponent: float) -> float:
    """`(1 + staleness) ** -exponent`, the same double on every machine; in (0, 1]."""
    power = _DECIMAL.power(Decimal(1 + staleness), -Decimal(exponent))
    return max(float(power), 2.0**-64)  # a very large exponent must not round the weight to 0: the minimum is 1


def integer_weight(units: int, shift: int, factor: float = 1.0) -> int:
    """`units << shift` times the staleness factor, to the nearest integer (ties to even), at least 1."""
    whole = units << shift
    return whole if factor == 1.0 else max(1, round(Fraction(factor) * whole))


def contributions(policy: RunPolicy, rnd: RoundState) -> tuple[Contribution, ...]:
    """The terms of the round's sum: its reported members in order, then the carried updates in order."""
    shift = rnd.grid.weight_shift if rnd.grid else 0
    train = rnd.kind is RoundKind.TRAIN
    fresh = (
        Contribution(
            m.participant,
            integer_weight(policy.counted_weight(m.reported_weight), shift)
            if train
            else min(m.reported_weight, policy.max_weight),
            m.update,
            m.metrics,
        )
        for m in rnd.roster
        if m.status is MemberStatus.REPORTED
    )
    carried = (
        Contribution(
            c.update.participant,
            integer_weight(policy.counted_weight(c.update.weight), shift, c.factor),
            c.update,
            (),
        )
        for c in rnd.carried
    )
    return (*fresh, *carried)


def total_weight(terms: tuple[Contribution, ...]) -> int:
    """Sum of the integer weights."""
    return sum(term.weight for term in terms)
