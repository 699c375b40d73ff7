"""The control API's answers about the privacy ledger, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSpending:
    """The privacy spending of one run: ``epsilon`` at ``delta``, composed by its ``accountant`` (prv or rdp).

    ``name`` is empty for a deleted run; ``target`` is the epsilon that it promised not to exceed, if any.
    """

    run: str
    name: str
    epsilon: float
    delta: float
    accountant: str
    target: float | None
    releases: int
    first_at: float
    last_at: float


@dataclass(frozen=True)
class PopulationSummary:
    """The privacy spending of a population.

    Attributes:
        population: its name.
        adjacency: add_remove; replace_one for an older population, which no current job promises.
        unit: the unit of privacy, such as participant.
        epsilon: of all releases, at ``delta`` (None while nothing is charged and there is no limit).
        accountant: the accountant of ``epsilon``: that of an only run, or rdp for several runs.
        limit_epsilon: maximum epsilon of all its runs together at ``limit_delta``; None without a limit.
        left: epsilon left of the limit.
        limited_by: the operator who last set or removed the limit; empty if none was ever set.
        charges: number of charged releases.
        head: digest at the end of the chain of charges.
        flaw: the flaw of its ledger; empty if it is intact. With a flaw the other fields cover only the readable part,
            and none of them is a bound.
        line: first line of its export; empty if its record is lost.
        limit_line: last line of its export: the limit, who set it and when; empty if none was ever set.
    """

    population: str
    adjacency: str
    unit: str
    created_at: float
    epsilon: float
    delta: float | None
    accountant: str
    limit_epsilon: float | None
    limit_delta: float | None
    left: float | None
    limited_by: str
    limited_at: float | None
    charges: int
    head: str
    runs: tuple[RunSpending, ...]
    flaw: str
    line: str
    limit_line: str


@dataclass(frozen=True)
class ChargeSummary:
    """The cost of one released round. Rounds count from 0 here and in JSON, from 1 in tables.

    ``noise_multiplier`` is None for a release that adds nothing. ``epsilon_after`` is its run's epsilon including it,
    if requested. ``line`` is its line in an export. A charge with a ``flaw`` has only its place and line.
    """

    population: str
    seq: int
    run: str
    round: int
    attempt: int
    version: int
    mechanism: str
    clip: float
    noise_multiplier: float | None
    sample_rate: float
    sampling: str
    charged_at: float
    digest: str
    epsilon_after: float | None
    line: str
    flaw: str = ""


@dataclass(frozen=True)
class ChargesPage:
    """A page of charges; ``next_seq`` is where the next begins, None after the last.

    ``population`` is the charged population, empty for a run without privacy.
    """

    charges: tuple[ChargeSummary, ...]
    next_seq: int | None
    population: str


@dataclass(frozen=True)
class ParticipantRun:
    """A participant's part in one run: the train rounds that it was ``drawn`` for, and those that released its update.

    ``population`` is empty for a run without privacy; ``releases`` counts the models that the run has released.
    """

    run: str
    name: str
    population: str
    drawn: int
    counted: int
    releases: int


@dataclass(frozen=True)
class ParticipantPrivacy:
    """A participant's privacy, over all runs.

    Attributes:
        participant: its id.
        organisation: its organisation.
        runs: the runs that it was drawn for, the newest first.
        populations: the populations of these runs. The epsilon of each holds for every participant, regardless of how
            often it was drawn.
        epsilon: sum over these populations, at ``delta``, which holds for all their releases together.
        delta: sum over these populations.
        unprotected: runs without privacy that counted one of its updates, and give no guarantee.
        unknown: populations with deleted runs, for which it may have been drawn.
        truncated: whether older runs are left out.
    """

    participant: str
    organisation: str
    runs: tuple[ParticipantRun, ...]
    populations: tuple[PopulationSummary, ...]
    epsilon: float
    delta: float
    unprotected: tuple[str, ...]
    unknown: tuple[str, ...]
    truncated: bool
