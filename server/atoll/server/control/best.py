"""The best model of a run, from the metrics of its rounds, by the rule of the round engine (``rounds.judging``)."""

from __future__ import annotations

from collections.abc import Iterable

from atoll.server.control.runs import BestModel, RoundSummary
from atoll.server.rounds.judging import Criterion, Mode, judged

JUDGING = ("eval/", "server/")
"""Prefixes of metrics that measure models: participants' evaluations, and the server's evaluator."""
COUNTS = "eval/examples"


def judging_metrics(rounds: Iterable[RoundSummary]) -> tuple[str, ...]:
    """Names of the metrics of released rounds that measure models, sorted."""
    names = {name for item in rounds if item.released for name in item.metrics if name.startswith(JUDGING)}
    return tuple(sorted(names - {COUNTS}))


def best_model(rounds: Iterable[RoundSummary], metric: str, mode: str) -> BestModel | None:
    """The first model that reached the best value; None if none was measured.

    An ``eval/`` metric measures the model that its round handed out, a ``server/`` metric the model that it released.
    If one model was measured several times, the first counts.

    Args:
        rounds: attempts in order; only released ones count.
        metric: its name with its prefix.
        mode: ``max`` or ``min``, whichever is better.
    """
    criterion, standing = Criterion(metric, Mode(mode)), None
    for item in rounds:
        if item.released:
            standing = judged(standing, criterion, item.version, tuple(item.metrics.items()))
    return None if standing is None else BestModel(metric, mode, standing.value, standing.version)
