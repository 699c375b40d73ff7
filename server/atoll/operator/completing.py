"""Fetch a run with all its rounds: one answer has only the newest 1000 attempts and at most 10,000 members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.server.control import RoundSummary, RunDetail


def completed(newest: RunDetail, fetch: Callable[[int], RunDetail], *, members: bool) -> RunDetail:
    """The run with the rounds that the answer omitted, one call for each.

    Args:
        newest: the run as the server answered.
        fetch: returns the run with only the attempts at one round.
        members: whether rounds without their members are fetched again.
    """
    known = {_key(one): one for one in newest.rounds}
    first, attempt = min(known, default=(0, 0))
    lacking = set(range(first + (attempt > 0)))
    if members:
        lacking |= {one.round for one in newest.rounds if one.cohort and not one.members}
    run = newest.run
    for number in sorted(lacking):
        found = fetch(number)
        run = found.run  # the first answer's reason may say that rounds are omitted
        known |= {_key(one): one for one in found.rounds}
    return replace(newest, run=run, rounds=tuple(known[key] for key in sorted(known)))


def _key(one: RoundSummary) -> tuple[int, int]:
    return one.round, one.attempt
