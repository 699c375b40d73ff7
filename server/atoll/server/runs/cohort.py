"""Draws the members of one round from the participants that are available."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence

from atoll.server.jobs import JobSpec, expected_window_s
from atoll.server.jobs.refusals import has_secret_draw
from atoll.server.privacy.capacity import most_eligible, most_members, rotated
from atoll.server.rounds import CohortDrawn, DrawCohort, RoundKind
from atoll.server.runs.required import required_among, required_members
from atoll.server.runs.session import Session
from atoll.server.sampling import DrawRequest, Eligible, Everyone, History, sampler_named

log = logging.getLogger(__name__)

SEED_BITS = 63
"""Size of a seed that is recorded, so that the draw can be repeated."""
SECRET_BITS = 256
"""Size of the seed of a secret draw, which must not be guessed and is forgotten."""


class Drawable:
    """The candidates of a draw, as samplers see them; kept because the next draw mostly has the same ones."""

    def __init__(self) -> None:
        self._sessions: Sequence[Session] = ()
        self.everyone = Everyone()
        self.declared: Mapping[str, int] = {}

    def update(self, sessions: Sequence[Session], most: int) -> None:
        """Set the candidates. Declared examples are capped at ``most``: larger claims must not attract samplers."""
        if sessions == self._sessions:
            return
        self._sessions = sessions
        self.declared = {session.participant: session.introduction.examples for session in sessions}
        self.everyone = Everyone.of(Eligible(name, min(examples, most)) for name, examples in self.declared.items())


def cohort_from(
    there: Sequence[Session],
    effect: DrawCohort,
    spec: JobSpec,
    known: Mapping[str, History],
    at: float,
    drawable: Drawable | None = None,
) -> CohortDrawn:
    """Draw the members of a round: first those that the job requires by name, then others up to the size.

    Args:
        there: sessions of the participants that can be drawn.
        effect: the round.
        spec: its job.
        known: history of each participant; empty for samplers that do not use it.
        at: epoch seconds.
        drawable: the candidates of the run's last draw.
    """
    there, secret = _in_draw(spec, there, effect), has_secret_draw(spec)
    required = required_among(there, spec.cohort.required_names) if spec.cohort.required_names else {}
    rest = [session for session in there if session.participant not in required] if required else there
    drawable = drawable or Drawable()
    drawable.update(rest, spec.aggregation.max_weight)
    cohort = sampler_named(spec.cohort.sampler).draw(
        DrawRequest(
            eligible=drawable.everyone,
            size=max(0, effect.invited - len(required)),
            seed=secrets.randbits(SECRET_BITS) if secret else _seed(spec),
            round=effect.planned_round,
            attempt=effect.key.attempt,
            history=known,
            rate=spec.cohort.rate,
            at=at,
            window_s=expected_window_s(spec),
        )
    )
    declared = drawable.declared
    drawn = [(participant, declared[participant]) for participant, _ in cohort.members]
    members = _with_required(_invited(spec, drawn, effect), required, there)
    must_count = required_members(spec, required, (name for name, _ in members), there)
    eligible, seed = cohort.eligible + len(required), 0 if secret else cohort.seed
    return CohortDrawn(effect.key, members, eligible, cohort.sampler, seed, must_count)


def _with_required(
    drawn: tuple[tuple[str, int], ...], required: Mapping[str, str], there: Sequence[Session]
) -> tuple[tuple[str, int], ...]:
    """The drawn members together with the required ones, in order of id."""
    if not required:
        return drawn
    also = [(one.participant, one.introduction.examples) for one in there if one.participant in required]
    return tuple(sorted((*drawn, *also)))


def able_among(sessions: Iterable[Session], kind: RoundKind, spec: JobSpec) -> list[Session]:
    """The participants that are able to take part in a round of this kind."""
    judged: dict[int, bool] = {}  # cached by introduction: a simulation has few different ones
    found = []
    for session in sessions:
        said = id(session.introduction)
        if said not in judged:
            judged[said] = is_able(session, kind, spec)
        if judged[said]:
            found.append(session)
    return found


def is_able(session: Session, kind: RoundKind, spec: JobSpec) -> bool:
    """Whether the participant is able to take part in a round of this kind."""
    said = session.introduction
    if said.unary and not takes_unary(spec):
        return False
    if kind is RoundKind.EVALUATE:
        return said.can_evaluate
    return said.examples > 0 and spec.aggregation.wire_encoding in said.encodings


def takes_unary(spec: JobSpec) -> bool:
    """Whether the job's rounds may draw participants that check in without a stream.

    A secret draw may not: such a participant's presence in a round depends on whether an earlier round drew it, and the
    accounting of amplification by sampling assumes independent draws (docs/decisions/0050).
    """
    return not has_secret_draw(spec)


def _seed(spec: JobSpec) -> int:
    return spec.cohort.seed if spec.cohort.seed is not None else secrets.randbits(SEED_BITS)


def _in_draw(spec: JobSpec, there: Sequence[Session], effect: DrawCohort) -> Sequence[Session]:
    """Limit the candidates to what a private round can hold; rotate which ones by round."""
    cohort = spec.cohort
    if cohort.rate is None or not has_secret_draw(spec):
        return there
    most = most_eligible(cohort.size, cohort.rate)
    if len(there) <= most:
        return there
    log.warning(
        "round %s: only %d of %d participants are in the draw, others in other rounds: with cohort.rate %g more could "
        "be drawn than the sum has room for beside its noise; submit the job with another cohort.size",
        effect.key,
        most,
        len(there),
        cohort.rate,
    )
    chosen = rotated((session.participant for session in there), most, effect.key.round)
    return [session for session in there if session.participant in chosen]


def _invited(spec: JobSpec, drawn: list[tuple[str, int]], effect: DrawCohort) -> tuple[tuple[str, int], ...]:
    """Limit the drawn members to what a private round can hold; rotate which ones by round."""
    if spec.privacy is None or len(drawn) <= most_members(spec.cohort.size):
        return tuple(drawn)
    most = most_members(spec.cohort.size)
    log.warning(
        "round %s: %d participants were drawn; the sum has room for %d beside its noise", effect.key, len(drawn), most
    )
    chosen = rotated((participant for participant, _ in drawn), most, effect.key.round)
    return tuple(member for member in drawn if member[0] in chosen)
