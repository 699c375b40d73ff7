"""``atoll privacy audit``: tests whether releases reveal more than claimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from atoll.operator.errors import BadInputError, OperatorError
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import busy, console, json_option, print_json, print_table
from atoll.server.jobs import JobFileError, parse_job
from atoll.settings.numbers import Finite
from atoll.text.figures import bound, counted, remainder

if TYPE_CHECKING:
    from atoll.server.privacy.contract import Contract
    from atoll.server.privacy_audit.auditing import Finding
    from atoll.server.privacy_audit.noise_scale import NoiseFound

_DIGITS = 5
"""Digits of an epsilon, many because the claim is close to the bound in a good audit."""


@dataclass(frozen=True)
class Promise:
    """The contract to audit without a job: Gaussian noise with one multiplier in every round."""

    epsilon: float | None
    noise_multiplier: float | None
    delta: float
    rounds: int
    rate: float


@dataclass(frozen=True)
class Audited:
    """The object that ``--json`` prints.

    Attributes:
        epsilon_at_least: the bound that the canaries prove, with ``confidence``.
        claimed: epsilon at ``delta`` by the accountant.
        promised_delta: the contract's delta; at a smaller ``delta``, the same releases claim a larger epsilon.
        shows: the bound that the audit would prove with almost no noise.
        refuted: whether the bound exceeds the claim, or noise is missing.
        noise_share: standard deviation of the noise in the audit's releases, divided by the contract's.
        noise_share_at_most: upper bound on the share, wrong with probability 1e-6.
        noise_missing: where there is too little noise.
        daemon_share, daemon_share_at_most, daemon_missing: the same for releases of a separate daemon.
        canaries, guessed, right: number of canaries, of guesses, and of right guesses.
    """

    epsilon_at_least: float
    claimed: float
    delta: float
    confidence: float
    refuted: bool
    shows: float
    promised_delta: float
    canaries: int
    guessed: int
    right: int
    directions: str
    noise: float
    clipping: bool
    mechanism: str
    rounds: int
    noise_multiplier: float
    noise_share: float
    noise_share_at_most: float
    noise_missing: tuple[str, ...]
    daemon_share: float
    daemon_share_at_most: float
    daemon_missing: tuple[str, ...]


@click.command(cls=Command)
@click.argument("job", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--epsilon", type=Finite(0, 1000, min_open=True), help="Without a job: Gaussian noise for this epsilon.")
@click.option(
    "--noise-multiplier", type=Finite(0, 1e6, min_open=True), help="Without a job: Gaussian noise with this multiplier."
)
@click.option("--delta", type=Finite(0, 1e-2, min_open=True), default=1e-5, show_default=True, help="Without a job.")
@click.option("--rounds", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Without a job.")
@click.option(
    "--rate",
    type=Finite(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Without a job: probability with which each participant is drawn for a round.",
)
@click.option(
    "--canaries", type=click.IntRange(1), help="A power of two. Default: the fewest that can refute the claim."
)
@click.option(
    "--directions",
    type=click.Choice(["dirac", "signs"]),
    default="dirac",
    show_default=True,
    help="Canaries of one element each, or of all elements with different signs.",
)
@click.option("--without-noise", is_flag=True, help="Release without noise: the audit must fail.")
@click.option("--without-clipping", is_flag=True, help="Sum updates without clipping: the audit must fail.")
@json_option
def audit(
    *,
    job: Path | None,
    canaries: int | None,
    directions: Literal["dirac", "signs"],
    without_noise: bool,
    without_clipping: bool,
    json_output: bool,
    **promise: float | None,
) -> None:
    """Attack the releases of the private job JOB with canaries, and compare the proven epsilon with the claim.

    Canaries are participants that are in or out by a coin toss, with updates far beyond the clip norm. They pass
    through the server's own clipping, sums, noise and release, and the coins are guessed from the releases (one-run
    auditing, Steinke et al. 2023). The noise in the releases is also measured against the claim, here and in a separate
    daemon. Exit code 1: the claim is false, because the measured epsilon exceeds it or noise is missing.
    """
    from atoll.server.privacy_audit.auditing import audit as run_audit  # noqa: PLC0415  # numba and scipy take seconds
    from atoll.server.privacy_audit.auditing import design  # noqa: PLC0415
    from atoll.server.privacy_audit.rehearsal import Safeguards  # noqa: PLC0415
    from atoll.server.privacy_audit.through_daemon import noise_through_daemon  # noqa: PLC0415

    with local_errors():
        with busy("working out the noise and how many to guess"):
            plan = design(_contract(job, promise), canaries)
        on = Safeguards(0.0 if without_noise else 1.0, not without_clipping)
        with busy(f"releasing {counted(plan.contract.rounds, 'round')} with {plan.canaries} canaries"):
            found = run_audit(plan, directions, on)
        with busy("measuring the noise of a daemon's releases"):
            through_daemon = noise_through_daemon(plan.contract)
    _show(_audited(found, through_daemon), json_output=json_output)


def _contract(job: Path | None, promise: dict[str, float | None]) -> Contract:
    given = [name for name in ("epsilon", "noise_multiplier") if promise[name] is not None]
    if (job is not None) + len(given) != 1:
        raise BadInputError("nothing to audit, or too much", "give JOB.toml, or --epsilon, or --noise-multiplier")
    if job is None:
        return _promised(Promise(**promise))  # type: ignore[arg-type]  # click has checked each by its option
    from atoll.server.privacy.deriving import contract_of  # noqa: PLC0415  # numba takes a second

    try:
        spec = parse_job(job.read_bytes(), str(job))
        contract = contract_of(spec)
    except JobFileError as error:
        raise BadInputError(str(error)) from error
    if spec.statistics is not None:
        raise BadInputError(
            f"{job} finds statistics, and the audit's canaries are updates of models",
            "`atoll privacy plan` shows the noise on its figures; docs/statistics.md names the tests of it",
        )
    if contract is None:
        raise BadInputError(f"{job} promises no privacy", "give it a section [privacy]")
    return contract


def _promised(promise: Promise) -> Contract:
    from atoll.server.privacy.accounting import calibrate  # noqa: PLC0415
    from atoll.server.privacy.contract import Contract  # noqa: PLC0415
    from atoll.server.privacy.events import Adjacency, Event, Sampling  # noqa: PLC0415

    sampling = Sampling.NONE if promise.rate == 1 else Sampling.POISSON
    event = Event(1.0, promise.rate, promise.rounds, sampling)
    noise = promise.noise_multiplier or calibrate(event, promise.epsilon or 0.0, promise.delta, "prv")
    return Contract(
        population="audit",
        mechanism="gaussian",
        adjacency=Adjacency.ADD_REMOVE,
        accountant="prv",
        sampling=sampling,
        sample_rate=promise.rate,
        epsilon=promise.epsilon,
        delta=promise.delta,
        noise_multiplier=noise,
        clip=1.0,
        adaptive=None,
        weight_bound=1,
        divisor_weight=1,
        rounds=promise.rounds,
        max_participations=promise.rounds if sampling is Sampling.NONE else None,
    )


def _audited(found: Finding, through_daemon: NoiseFound) -> Audited:
    plan, contract = found.design, found.design.contract
    return Audited(
        epsilon_at_least=found.epsilon_at_least,
        claimed=plan.claimed,
        delta=plan.delta,
        confidence=plan.confidence,
        refuted=found.refuted or through_daemon.refuted,
        shows=plan.shows,
        promised_delta=contract.delta,
        canaries=plan.canaries,
        guessed=found.guesses.made,
        right=found.guesses.right,
        directions=found.directions,
        noise=found.safeguards.noise,
        clipping=found.safeguards.clipping,
        mechanism=contract.mechanism,
        rounds=contract.rounds,
        noise_multiplier=contract.noise_multiplier,
        noise_share=found.noise.share,
        noise_share_at_most=found.noise.share_at_most,
        noise_missing=found.noise.missing,
        daemon_share=through_daemon.share,
        daemon_share_at_most=through_daemon.share_at_most,
        daemon_missing=through_daemon.missing,
    )


def _measured(share: float, at_most: float, missing: tuple[str, ...]) -> str:
    where = f"; too little in {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}" if missing else ""
    return f"{share:.4f} of the claim; below {at_most:.4f} except with probability 1e-6{where}"


def _smaller(found: Audited) -> str:
    return (
        "" if found.delta == found.promised_delta else f", as follows from what is promised at {found.promised_delta:g}"
    )


def _show(found: Audited, *, json_output: bool) -> None:
    if json_output:
        print_json(found)
    else:
        rows = [
            ("claimed", f"epsilon {bound(found.claimed, _DIGITS)} at delta {found.delta:.3g}{_smaller(found)}"),
            (
                "proved by canaries",
                f"epsilon {remainder(found.epsilon_at_least, _DIGITS)} or more, confidence {found.confidence:.0%}",
            ),
            ("with next to no noise", f"this audit would prove {remainder(found.shows, _DIGITS)}"),
            ("canaries", f"{found.canaries}; {found.guessed} guessed, {found.right} of them rightly"),
            ("releases", f"{found.rounds}, {found.mechanism} noise, multiplier {found.noise_multiplier:.4g}"),
            ("noise", "as claimed" if found.noise == 1 else "switched off"),
            ("noise measured", _measured(found.noise_share, found.noise_share_at_most, found.noise_missing)),
            ("through a daemon", _measured(found.daemon_share, found.daemon_share_at_most, found.daemon_missing)),
            ("clipping", "as claimed" if found.clipping else "switched off"),
        ]
        print_table(("audit", "refuted" if found.refuted else "not refuted"), rows, "")
    if found.refuted:
        console(stderr=True).print("The claim is false: the releases give away more.", style="red")
        raise click.exceptions.Exit(OperatorError.exit_code)
