"""What colluding participants, who know their own draws, learn about another participant's: docs/decisions/0018.

Amplification by sampling is proved for adversaries who do not know the draw. Participants know whether they were drawn.
"""

from __future__ import annotations

import math
from collections import Counter

from atoll.server.sampling import DrawRequest, Eligible, sampler_named

DRAWS = 4000
EVERYONE = tuple(Eligible(f"p{number:02}") for number in range(20))
VICTIM = EVERYONE[7].participant
SIZE, RATE = 5, 0.25


def others_and_victim(sampler: str) -> list[tuple[frozenset[str], bool]]:
    """Return for each draw which of the others are in it, and whether the victim is."""
    found = []
    for number in range(DRAWS):
        request = DrawRequest(EVERYONE, SIZE, seed=20261122, round=number, rate=RATE if sampler == "poisson" else None)
        drawn = {participant for participant, _ in sampler_named(sampler).draw(request).members}
        found.append((frozenset(drawn - {VICTIM}), VICTIM in drawn))
    return found


def test_with_a_fixed_cohort_size_all_others_can_tell_whether_the_last_one_was_drawn() -> None:
    assert all(victim == (len(others) < SIZE) for others, victim in others_and_victim("uniform"))


def test_under_poisson_sampling_the_others_cannot_tell_whether_the_last_one_was_drawn() -> None:
    """For any number of others drawn, and any of them: the victim is drawn at the rate, within 5 deviations."""
    seen: Counter[object] = Counter()
    drawn: Counter[object] = Counter()
    for others, victim in others_and_victim("poisson"):
        for fact in (len(others), *others, *((name, "not") for name, _ in _members() if name not in others)):
            seen[fact] += 1
            drawn[fact] += victim
    often = [fact for fact, count in seen.items() if count >= 100]
    assert len(often) > 2 * (len(EVERYONE) - 1)
    for fact in often:
        deviation = math.sqrt(RATE * (1 - RATE) / seen[fact])
        assert abs(drawn[fact] / seen[fact] - RATE) < 5 * deviation, fact


def _members() -> list[tuple[str, int]]:
    return [(one.participant, one.examples) for one in EVERYONE if one.participant != VICTIM]
