"""Warnings at submission: reasons why a valid private run is unlikely to give a good model."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.signal_to_noise import signal_to_noise_of_run
from atoll.server.stores import participants
from atoll.text.figures import counted

HOPELESS = 1.0
"""Best-case signal-to-noise ratio of a run below which it is better not to train.

Below it, the noise on the sum of all rounds has a larger norm than the sum itself, even if every update has the clip
norm and all point the same way. The initial model is then nearer to the noise-free result than the run's result is: the
squared error of zero is the signal's squared norm, and that of the noised sum is the noise's (keep or kill, Donoho and
Johnstone 1994, section 2.2). Measured with DP-SGD, where the ratio is the same quantity: at 1.03 a model's accuracy
fell from 0.97 to 0.50 (docs/privacy/accuracy.md)."""


def warnings_of(connection: Connection, contract: Contract, elements: int, project: str) -> Iterator[str]:
    """The warnings of a private job.

    Args:
        connection: to the database.
        contract: the run's privacy contract.
        elements: number of elements that one round updates.
        project: the project whose participants are drawn.
    """
    ratio = signal_to_noise_of_run(contract, contract.planned_cohort, elements)
    if ratio < HOPELESS:
        yield (
            f"noise will outweigh what the run learns: over all {counted(contract.rounds, 'round')} signal to noise is "
            f"{ratio:.2g} at best, and below {HOPELESS:g} the initial model is nearer to the result without noise than "
            "the last one; `atoll privacy plan JOB.toml` shows cohorts, rounds and settings that are better"
        )
    if contract.sampling is Sampling.NONE:
        yield from _too_few(participants.count_standing(connection, project), contract)


def _too_few(enrolled: int, contract: Contract) -> Iterator[str]:
    """Warn if participants may reach their participation limit before the last round."""
    rounds = contract.rounds
    needed = contract.planned_cohort * max(contract.min_separation, -(-rounds // contract.participations))
    if 0 < enrolled < needed:
        lasts = min(rounds, enrolled * contract.participations // contract.planned_cohort)
        yield (
            f"{counted(rounds, 'round')} with whole cohorts of {contract.planned_cohort} need {needed} participants: "
            f"each may be in {counted(contract.participations, 'round')}, {contract.min_separation} apart; there are "
            f"{enrolled}, enough for {counted(lasts, 'round')}: the run will wait for more, or set job.rounds, "
            "privacy.max_participations or min_separation to fit"
        )
