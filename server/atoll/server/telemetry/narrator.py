"""What the log tells of rounds: one line for each that ends, and one for each member that could not do its part.

Of a secret draw the lines at the default level neither name members nor count them: logs are read more widely than an
operator's commands, which show both.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from atoll.server.daemon.audit import one_line
from atoll.server.rounds import Declined, Event, MemberFailed, RecordRound, Rejected, RoundState, WentSilent

if TYPE_CHECKING:
    from atoll.server.daemon.stepping import Entry

log = logging.getLogger(__name__)

_LEAVING: dict[type[Event], tuple[int, str]] = {
    Declined: (logging.DEBUG, "declined"),
    WentSilent: (logging.DEBUG, "went silent"),
    MemberFailed: (logging.INFO, "failed"),
    Rejected: (logging.WARNING, "is rejected"),
}


def narrate(entry: Entry) -> None:
    """Log what became durable, each line with its run, round and participant."""
    secret = entry.after.policy.secret_draw
    for played in entry.logged:
        level, what = _LEAVING.get(type(played.event), (0, ""))
        if isinstance(played.event, Declined | WentSilent | MemberFailed | Rejected):
            event = played.event
            about = {"run": entry.run, "round": event.key, "participant": event.participant}
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
                _tell_end(entry.run, effect.round, secret=secret)


def _tell_end(run: str, ended: RoundState, *, secret: bool) -> None:
    about = {"run": run, "round": ended.key}
    reported = f"{ended.roster.reported} of {len(ended.roster)} reported"
    log.info(
        "%s round %s %s after %.3f s: %s%s",
        ended.kind.value,
        ended.key,
        ended.phase.value,
        max(0.0, ended.ended_at - ended.created_at),
        "" if secret else f"{reported}; ",
        ended.reason,
        extra=about,
    )
    if secret:
        log.debug("round %s: %s", ended.key, reported, extra=about)
