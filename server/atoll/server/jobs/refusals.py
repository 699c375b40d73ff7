"""Refuses jobs without a valid privacy account, before anything is calibrated or sent.

Each rule follows from the server's actual behaviour. A combination that no theorem covers is never approximated, but
refused with the reason and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atoll.server.sampling.registry import sampler_named

if TYPE_CHECKING:
    from atoll.server.jobs.privacy_section import Privacy
    from atoll.server.jobs.tables import JobTables

Refusal = tuple[str, str]
"""The job's key, and its problem with the remedy."""

COUNT_NOISE_SHARE = 1 / 20
"""Default noise on adaptive clipping's count, as a share of the cohort's size (Andrew et al. 2021, section 3.1)."""


def counts_on_sampling(spec: JobTables) -> bool:
    """Whether a private job's account relies on amplification by sampling: an independent draw with fresh noise."""
    fresh_noise = spec.privacy is None or spec.privacy.mechanism == "gaussian"
    return fresh_noise and sampler_named(spec.cohort.sampler).independent


def has_secret_draw(spec: JobTables) -> bool:
    """Whether the account assumes a secret draw, on which nothing but the sums may depend."""
    return spec.privacy is not None and counts_on_sampling(spec)


def count_noise(spec: JobTables, section: Privacy) -> float | None:
    """Standard deviation of the noise on adaptive clipping's count, in participants; None with a fixed clip."""
    if section.adaptive is None:
        return None
    return section.adaptive.count_noise or spec.cohort.size * COUNT_NOISE_SHARE


def refusals(spec: JobTables) -> Iterator[Refusal]:
    """Yield the settings that leave the privacy section without a valid account; nothing without a section."""
    section = spec.privacy
    if section is None:
        return
    if section.clip is None and section.adaptive is None:
        yield "privacy.clip", "give exactly one of clip and adaptive"
    if section.unit == "row" and spec.statistics is None:
        yield (
            "privacy.unit",
            'is "row": the noise of a round hides rows only in [statistics]; leave it out, or have participants train '
            "with DP-SGD (docs/privacy/local.md), which hides their rows",
        )
    yield from _what_is_released(spec)
    yield from _what_is_summed(spec)
    yield from _who_must_count(spec)
    yield from _budget(spec, section)
    if counts_on_sampling(spec):
        yield from _secret_draw(spec, section)
    else:
        yield from _no_amplification(spec, section)


def _what_is_released(spec: JobTables) -> Iterator[Refusal]:
    evaluation = spec.evaluation
    why = "releases participants' metrics, which nothing is charged for"
    instead = "the server's own evaluator (evaluation.server) judges every model at no cost"
    if evaluation.before_training:
        yield "evaluation.before_training", f"{why}; set it to false: {instead}"
    if evaluation.every:
        yield "evaluation.every", f"{why}; set it to 0: {instead}"
    if evaluation.final:
        yield "evaluation.final", f"{why}; set it to false: {instead}"


def _what_is_summed(spec: JobTables) -> Iterator[Refusal]:
    aggregation = spec.aggregation
    if spec.straggler.late != "drop":
        yield (
            "straggler.late",
            "with privacy a late report cannot count in another round: one participant would be in a sum twice, or in "
            'one that it was not drawn for; allowed is "drop"',
        )
    if aggregation.weighting == "examples" and "max_weight" not in aggregation.model_fields_set:
        yield (
            "aggregation.max_weight",
            "is missing: one participant moves a sum weighted by examples by max_weight times the clip norm, so it "
            'decides the noise; give the smallest that fits your data, or set weighting = "uniform"',
        )
    if aggregation.fragments > 1 and spec.privacy is not None and spec.privacy.mechanism != "gaussian":
        yield (
            "aggregation.fragments",
            f'does not go with privacy.mechanism "{spec.privacy.mechanism}": noise of one part of the model cannot '
            'cancel in another; set it to 1, or choose mechanism "gaussian"',
        )


def _who_must_count(spec: JobTables) -> Iterator[Refusal]:
    if not spec.cohort.required:
        return
    if counts_on_sampling(spec):
        why = "a run that stops and names who was missing tells who was drawn, and the account relies on a secret draw"
    else:
        why = "one participant's failure would decide whether the others count, which no account covers"
    yield "cohort.required", f"does not go with [privacy]: {why}; leave it out"


def _budget(spec: JobTables, section: Privacy) -> Iterator[Refusal]:
    if section.delta * spec.cohort.size >= 1:
        yield (
            "privacy.delta",
            f"publishing a random member of each cohort of {spec.cohort.size} would meet it; allowed is below "
            f"{1 / spec.cohort.size:g}, sensible is well below 1 / (the population)",
        )
    noise, z = count_noise(spec, section), section.noise_multiplier
    if noise is not None and z is not None and 2 * noise <= z:
        yield (
            "privacy.adaptive.count_noise",
            f"{noise:g} participants: the count alone would cost more than noise_multiplier {z:g} allows for all; "
            f"allowed is above {z / 2:g}; the default follows from a larger cohort.size",
        )


def _secret_draw(spec: JobTables, section: Privacy) -> Iterator[Refusal]:
    """Check Poisson sampling's conditions: a known rate, a secret draw, releases that depend on nothing else."""
    cohort = spec.cohort
    if cohort.rate is None:
        yield (
            "cohort.rate",
            "is missing: `size` over those connected is another rate in every round, which a participant's absence "
            "changes; give the probability with which each is drawn",
        )
    if cohort.quorum > 0:
        yield (
            "cohort.quorum",
            "a round that is tried again when few report depends on who was drawn, and the draw is no longer the one "
            "that is accounted for; set it to 0",
        )
    if cohort.seed is not None:
        yield (
            "cohort.seed",
            "others could repeat the draw, and the account relies on a secret one; leave it out",
        )
    if spec.straggler.learned is not None:
        yield (
            "straggler.learned",
            "derives the deadline from the past speed of the drawn members, and so reveals who was drawn; the account "
            "relies on a secret draw; give straggler.report_window_s instead",
        )
    yield from (
        (
            f"privacy.{key}",
            f'has no effect: with cohort.sampler "{cohort.sampler}" and mechanism "gaussian" the account relies '
            "only on the random draw; leave it out",
        )
        for key in ("max_participations", "min_separation")
        if getattr(section, key) is not None
    )


def _no_amplification(spec: JobTables, section: Privacy) -> Iterator[Refusal]:
    if section.report_noise is not None:
        yield (
            "privacy.report_noise",
            "is for secret draws alone: here the number of reports is no secret, and cohort.quorum says how many a "
            "round needs; leave it out",
        )
    if section.max_participations is None and section.mechanism == "gaussian":
        yield (
            "privacy.max_participations",
            f'is needed with cohort.sampler "{spec.cohort.sampler}": participants who know whether they were drawn can '
            "tell who else was, so every participation costs in full; give the most that one participant may have, or "
            'choose cohort.sampler "poisson" with a rate',
        )
