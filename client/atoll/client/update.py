"""A participant's results, an update or an evaluation, and their checks, which the server repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.client.errors import UpdateError
from atoll.client.scores import ScoreHistogram
from atoll.wire.layout import Dtype, Layout
from atoll.wire.scores import MAX_HISTOGRAMS

if TYPE_CHECKING:
    from atoll.client.task import Task

MAX_METRICS = 64
MAX_METRIC_NAME_CHARS = 128
MAX_NAMED = 5
"""Maximum number of tensors that an error names."""


@dataclass(frozen=True)
class Update:
    """The result of training.

    Attributes:
        weights: the local weights after training, one array per tensor of the model, in its shape. Frozen tensors may
            be left out (``task.is_frozen``); their changes are not sent. bfloat16 tensors
            may be float arrays or their bits (uint16). The difference local - global is sent, computed chunk by chunk.
            Do not change the arrays before the next call of ``fit``: they are read during the upload.
        delta: the difference itself, instead of ``weights``.
        weight: number of examples trained on; at least 1, at most ``task.max_weight``.
        metrics: numbers for the operator (``{"loss": 0.3}``).
        partial: whether training stopped early.
    """

    weights: Mapping[str, npt.NDArray[Any]] | None = None
    delta: Mapping[str, npt.NDArray[Any]] | None = None
    weight: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    partial: bool = False

    @property
    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The arrays of ``weights`` or ``delta``.

        Raises:
            UpdateError: unless exactly one of ``weights`` and ``delta`` is given.
        """
        if (self.weights is None) == (self.delta is None):
            raise UpdateError("an Update needs either weights=... or delta=..., and not both")
        return self.weights if self.weights is not None else self.delta or {}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on the participant's own data.

    ``weight`` is the number of examples over which the metrics are means. The server reports weighted means over the
    cohort, in which a participant's weight is at most its declared weight. ``scores`` are histograms of a classifier's
    scores by name (``{"auc": ScoreHistogram.of(labels, scores)}``): the server sums them and reports the AUC of all
    examples under that name. Privacy terms and the policy treat them as metrics.
    """

    metrics: Mapping[str, float]
    weight: int
    scores: Mapping[str, ScoreHistogram] = field(default_factory=dict)


def check_update(update: Update, layout: Layout, task: Task) -> None:
    """Check names, shapes, element types, weight and metrics; the values are checked during the upload.

    Raises:
        UpdateError: names the tensor or number, and what is allowed.
    """
    if not isinstance(update, Update):
        raise UpdateError(
            f"fit must return an atoll.client.Update, not {type(update).__name__}: return Update(weights=..., weight=n)"
        )
    _check_tensors(layout, update.tensors, task)
    check_weight(update.weight, "Update.weight", task.max_weight)
    check_metrics(update.metrics)


def check_evaluation(evaluation: Evaluation) -> None:
    """Check weight and metrics of an evaluation.

    Raises:
        UpdateError: names the faulty value.
    """
    if not isinstance(evaluation, Evaluation):
        raise UpdateError(
            f"evaluate must return an atoll.client.Evaluation, not {type(evaluation).__name__}: return "
            'Evaluation({"accuracy": 0.9}, weight=n)'
        )
    check_weight(evaluation.weight, "Evaluation.weight", 2**63 - 1)
    check_metrics(evaluation.metrics)
    _check_scores(evaluation)


def _check_scores(evaluation: Evaluation) -> None:
    if len(evaluation.scores) > MAX_HISTOGRAMS:
        raise UpdateError(f"{len(evaluation.scores)} score histograms, at most {MAX_HISTOGRAMS}")
    for name, histogram in evaluation.scores.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME_CHARS:
            raise UpdateError(f"score name {name!r}: needs 1 to {MAX_METRIC_NAME_CHARS} characters of text")
        if name in evaluation.metrics:
            raise UpdateError(f"{name!r} is the name of a metric and of a score histogram; give each a name of its own")
        if not isinstance(histogram, ScoreHistogram):
            raise UpdateError(f"scores[{name!r}] is a {type(histogram).__name__}; make it by ScoreHistogram.of")


def check_weight(weight: int, what: str, largest: int) -> None:
    """Check one count of examples.

    Raises:
        UpdateError: if it is not an integer from 1 to ``largest``.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | np.integer):
        raise UpdateError(f"{what} is {weight!r}; the number of examples, a whole number, is needed")
    if weight < 1:
        raise UpdateError(f"{what} is {weight}: nothing was trained on; at least 1 example is needed")
    if weight > largest:
        raise UpdateError(
            f"{what} is {weight}, above the {largest} that the server accepts from this participant: count at most its "
            "declared examples (Participant.examples) and the job's max_weight"
        )


def check_metrics(metrics: Mapping[str, float]) -> None:
    """Check names and number of metrics.

    Raises:
        UpdateError: for too many, over-long names, or values that are not numbers.
    """
    if len(metrics) > MAX_METRICS:
        raise UpdateError(f"{len(metrics)} metrics, at most {MAX_METRICS}")
    for name, value in metrics.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME_CHARS:
            raise UpdateError(f"metric name {name!r}: needs 1 to {MAX_METRIC_NAME_CHARS} characters of text")
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise UpdateError(f"metric {name!r} is {value!r} ({type(value).__name__}); a number is needed")


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics as plain floats, without values that are not finite, which would spoil the cohort's mean."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def difference(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """The missing and the unknown tensors, at least one of both, as text: ``lacks 'a', 'b' and has 'c'``."""
    lacks = f"lacks the {_few(missing)}" if missing else ""
    has = f"has the unknown {_few(unknown)}" if unknown else ""
    return " and ".join(part for part in (lacks, has) if part)


def _few(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    listed = ", ".join(map(repr, names[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
    return f"tensor{'s' if len(names) > 1 else ''} {listed}"


def _check_tensors(layout: Layout, tensors: Mapping[str, npt.NDArray[Any]], task: Task) -> None:
    expected = {spec.name: spec for spec in layout.tensors}
    missing = [name for name in expected if name not in tensors and not task.is_frozen(name)]
    unknown = [name for name in tensors if name not in expected]
    if missing or unknown:
        raise UpdateError(f"the update {difference(missing, unknown)}; the model has {_few(list(expected))}")
    for name, spec in expected.items():
        if name not in tensors:
            continue  # frozen
        array = tensors[name]
        if not isinstance(array, np.ndarray):
            raise UpdateError(f"tensor {name!r} is a {type(array).__name__}; a numpy array is needed")
        if array.shape != spec.shape:
            raise UpdateError(
                f"tensor {name!r} has shape {list(array.shape)}, the model's has {list(spec.shape)}: return it in that "
                "shape"
            )
        bits = spec.dtype is Dtype.BFLOAT16 and array.dtype == np.uint16
        if not bits and array.dtype.kind != "f":
            raise UpdateError(f"tensor {name!r} has element type {array.dtype}; a float type is needed")
