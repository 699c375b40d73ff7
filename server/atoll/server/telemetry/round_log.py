"""Log lines about rounds: one for each ended round, and one for each member that failed.

At the default level, lines about a round with a secret draw neither name nor count its members, since more people read
logs than use the operators' commands, which show both.
"""

from __future__ import annotations

import logging

from atoll.server.rounds import Declined, Event, MemberFailed, RecordRound, Rejected, RoundState, WentSilent
from atoll.server.telemetry.observer import StoredEvents
from atoll.server.telemetry.refusal_log import one_line

log = logging.getLogger(__name__)

_LEAVING: dict[type[Event], tuple[int, str]] = {
    Declined: (logging.DEBUG, "declined"),
    WentSilent: (logging.DEBUG, "went silent"),
    MemberFailed: (logging.INFO, "failed"),
    Rejected: (logging.WARNING, "is rejected"),
}


def log_stored(stored: StoredEvents) -> None:
    """Log events that became durable; each line has its run, round and participant."""
    secret = stored.after.policy.secret_draw
    for played in stored.logged:
        level, what = _LEAVING.get(type(played.event), (0, ""))
        if isinstance(played.event, Declined | WentSilent | MemberFailed | Rejected):
            event = played.event
            about = {"run": stored.run, "round": event.key, "participant": event.participant}
            log.log(
                logging.DEBUG if secret else level,
                "%s %s: %s",
                event.participant,
                what,
                one_line(event.reason),
                extra=about,
            )
        for effect in played.effects:
            if isinstance(effect, RecordRound):
                _log_end(stored.run, effect.round, secret=secret)


def _log_end(run: str, ended: RoundState, *, secret: bool) -> None:
    about = {"run": run, "round": ended.key}
    reported = f"{ended.roster.reported} of {len(ended.roster)} reported"
    log.info(
        "%s round %s %s after %.3f s, of which %.3f s until its members were drawn: %s%s",
        ended.kind.value,
        ended.key,
        ended.phase.value,
        max(0.0, ended.ended_at - ended.created_at),
        max(0.0, (ended.sampled_at or ended.ended_at) - ended.created_at),
        "" if secret else f"{reported}; ",
        ended.reason,
        extra=about,
    )
    if secret:
        log.debug("round %s: %s", ended.key, reported, extra=about)
