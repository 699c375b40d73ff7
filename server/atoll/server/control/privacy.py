"""What operators see of the privacy ledger: the control API's answers as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.wire.v1 import control_pb2


@dataclass(frozen=True)
class RunSpending:
    """What one run has spent: ``epsilon`` at ``delta``, added up by its ``accountant`` (prv or rdp).

    ``name`` is empty for a run that was deleted; ``target`` is what it promised to stay within, if it did.
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
class PopulationSpending:
    """What a population has spent.

    Attributes:
        population: its name.
        adjacency: add_remove or replace_one.
        unit: what is protected: participant.
        epsilon: of all releases at ``delta`` (None while nothing is charged and there is no limit).
        accountant: what added it up: that of its only run, rdp for several.
        limit_epsilon: what its runs may spend together at ``limit_delta``; None without a limit.
        left: of the limit.
        limited_by: the operator who set the limit or took it away; empty if nobody did.
        charges: releases that were charged.
        head: digest that the chain of charges ends with.
        flaw: what is wrong with its ledger; empty if nothing is. With a flaw the rest is what can be read of it, and
            no figure bounds anything.
        line: first line of its export; empty if its record is gone.
        limit_line: last line of its export: the limit, who set it and when; empty if nobody ever did.
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
class Charge:
    """What one released round has cost. Rounds count from 0 here and in JSON, from 1 in tables.

    ``noise_multiplier`` is None for a release that adds nothing; ``epsilon_after`` is its run's epsilon with it, where
    that was asked for; ``line`` is its line of an export. Of one with a ``flaw`` only place and line can be told.
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
class Charges:
    """A page of charges; ``next_seq`` is where the next begins, None after the last.

    ``population`` is whose they are: empty for a run without privacy, which is charged to none.
    """

    charges: tuple[Charge, ...]
    next_seq: int | None
    population: str


@dataclass(frozen=True)
class ParticipantRun:
    """A participant's part in one run: train rounds that it was ``drawn`` for, and those whose release has its update.

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
    """What holds for one participant.

    Attributes:
        participant: its id.
        organisation: whose it is.
        runs: those that it was drawn for, the newest first.
        populations: of these runs. Each one's epsilon holds for every participant, however often it was drawn.
        epsilon: sum over these populations: what holds for all that they released together, at ``delta``.
        delta: sum over these populations.
        unprotected: runs without privacy that counted an update of it: nothing is promised about these.
        unknown: populations with deleted runs, for which it may have been drawn.
        truncated: whether it has older runs that are not told.
    """

    participant: str
    organisation: str
    runs: tuple[ParticipantRun, ...]
    populations: tuple[PopulationSpending, ...]
    epsilon: float
    delta: float
    unprotected: tuple[str, ...]
    unknown: tuple[str, ...]
    truncated: bool


def population_of(message: control_pb2.PopulationSummary) -> PopulationSpending:
    """A population."""
    limit = message.limit_epsilon if message.HasField("limit_epsilon") else None
    return PopulationSpending(
        population=message.population,
        adjacency=message.adjacency,
        unit=message.unit,
        created_at=message.created_at,
        epsilon=message.epsilon,
        delta=message.delta if message.HasField("delta") else None,
        accountant=message.accountant,
        limit_epsilon=limit,
        limit_delta=message.limit_delta if message.HasField("limit_delta") else None,
        left=None if limit is None else max(0.0, limit - message.epsilon),
        limited_by=message.limited_by,
        limited_at=message.limited_at or None,
        charges=message.charges,
        head=message.head,
        runs=tuple(map(_run_of, message.runs)),
        flaw=message.flaw,
        line=message.line,
        limit_line=message.limit_line,
    )


def charges_of(message: control_pb2.ListChargesResponse) -> Charges:
    """A page of charges."""
    following = message.next if message.HasField("next") else None
    return Charges(tuple(map(_charge_of, message.charges)), following, message.population)


def participant_privacy_of(message: control_pb2.GetParticipantPrivacyResponse) -> ParticipantPrivacy:
    """What holds for a participant."""
    runs = tuple(
        ParticipantRun(run.run, run.name, run.population, run.drawn, run.counted, run.releases) for run in message.runs
    )
    return ParticipantPrivacy(
        participant=message.participant,
        organisation=message.organisation,
        runs=runs,
        populations=tuple(map(population_of, message.populations)),
        epsilon=message.epsilon,
        delta=message.delta,
        unprotected=tuple(run.run for run in runs if run.counted and not run.population),
        unknown=tuple(message.unknown),
        truncated=message.truncated,
    )


def _run_of(message: control_pb2.RunSpending) -> RunSpending:
    return RunSpending(
        run=message.run,
        name=message.name,
        epsilon=message.epsilon,
        delta=message.delta,
        accountant=message.accountant,
        target=message.target if message.HasField("target") else None,
        releases=message.releases,
        first_at=message.first_at,
        last_at=message.last_at,
    )


def _charge_of(message: control_pb2.ChargeSummary) -> Charge:
    return Charge(
        population=message.population,
        seq=message.seq,
        run=message.run,
        round=message.round,
        attempt=message.attempt,
        version=message.version,
        mechanism=message.mechanism,
        clip=message.clip,
        noise_multiplier=message.noise_multiplier if message.HasField("noise_multiplier") else None,
        sample_rate=message.sample_rate,
        sampling=message.sampling,
        charged_at=message.charged_at,
        digest=message.digest,
        epsilon_after=message.epsilon_after if message.HasField("epsilon_after") else None,
        line=message.line,
        flaw=message.flaw,
    )
