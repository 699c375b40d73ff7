"""The model card of a run's model: Markdown with the metadata that Hugging Face documents.

See https://huggingface.co/docs/hub/model-cards; the results have the form of its ``model-index``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.operator.exports.card_privacy import privacy_section
from atoll.operator.exports.markup import plain, quoted, table
from atoll.operator.exports.tracked import Point, tracked
from atoll.operator.run_job import job_keys
from atoll.operator.statistics import rows_words
from atoll.server import __version__
from atoll.server.control.best import COUNTS, JUDGING
from atoll.text.figures import counted, figure

if TYPE_CHECKING:
    from atoll.operator.ledger import RunLedger
    from atoll.server.control import RunDetail
    from atoll.statistics import Findings
    from atoll.wire.layout import Layout

MAX_TENSORS = 50
"""Maximum number of tensors that a card lists."""
_KIND = {
    "server/": "the server's evaluator",
    "eval/": "participants, on data held out",
    "train/": "participants, in training",
}


@dataclass(frozen=True)
class ExportedModel:
    """The facts that a model card states.

    Attributes:
        detail: the run with its rounds.
        round: train rounds behind the model.
        layout: names, shapes and element types of its tensors.
        blob: the digest of its bytes.
        ledger: the charges of a private run; None for other runs.
        findings: statistics of the data, if the card shows some.
        simulated: whether the participants were simulated.
    """

    detail: RunDetail
    round: int
    layout: Layout
    blob: str
    ledger: RunLedger | None = None
    findings: Findings | None = None
    simulated: bool = False

    @property
    def secret_draws(self) -> bool:
        """Whether the privacy bound assumes that only the models depend on who was drawn; True if that is unknown."""
        charges = () if self.ledger is None else self.ledger.charges
        known = self.ledger is None or (charges and not any(one.flaw for one in charges))
        return not known or any(one.sampling == "poisson" for one in charges)


def card(model: ExportedModel) -> str:
    """The whole README.md: front matter, then sections."""
    parts = [_front_matter(model), *_introduction(model), *_loading(model), *_training(model), *_metrics(model)]
    return "\n".join([*parts, *privacy_section(model.ledger), *_data(model), *_files(model)])


def measured(model: ExportedModel) -> dict[str, Point]:
    """The last value of each metric of this model, or of the newest measured model before it."""
    found: dict[str, Point] = {}
    for point in tracked(model.detail).points:
        if point.step <= model.round and not point.name.startswith("round/"):
            found[point.name] = point
    return dict(sorted(found.items()))


def _front_matter(model: ExportedModel) -> str:
    results = [one for one in measured(model).values() if one.step == model.round and _judges(one.name)]
    tags = ["federated-learning", "safetensors", *(["differential-privacy"] if model.ledger is not None else [])]
    lines = ["---", "library_name: atoll", "tags:", *(f"- {tag}" for tag in tags)]
    if results:
        kinds = sorted({point.name.partition("/")[2] for point in results})
        lines += ["metrics:", *(f"- {quoted(kind)}" for kind in kinds), *_index(model, results)]
    return "\n".join([*lines, "---", ""])


def _judges(metric: str) -> bool:
    return metric.startswith(JUDGING) and metric != COUNTS


def _index(model: ExportedModel, results: list[Point]) -> Iterator[str]:
    yield "model-index:"
    yield f"- name: {quoted(model.detail.run.name)}"
    yield "  results:"
    yield "  - task:\n      type: other\n      name: Federated training"
    yield f"    dataset:\n      type: private\n      name: {_data_words(model)}"
    yield "    metrics:"
    for point in results:
        kind = point.name.partition("/")[2]
        yield f"    - type: {quoted(kind)}\n      value: {quoted(point.value)}\n      name: {quoted(point.name)}"


def _data_words(model: ExportedModel) -> str:
    return "Data of simulated participants" if model.simulated else "Data that stayed with the participants"


def _where_data_was(model: ExportedModel) -> str:
    if model.simulated:
        return "Its participants were simulated: their data was in one place, and times are virtual."
    return "Its training data stayed with the participants."


def _introduction(model: ExportedModel) -> Iterator[str]:
    run = model.detail.run
    yield f"# {plain(run.name)}\n"
    how = "a simulation of federated training" if model.simulated else "federated training"
    after = counted(model.round, "round")
    yield f"The model after {after} of {how} with Atoll {__version__}. {_where_data_was(model)}\n"
    released = f"{run.rounds_released} of {run.rounds_total} rounds released"
    extended = f", {run.extension}" if run.extension else ""
    yield f"- Run: {plain(run.run)}, {plain(run.status)}, {released}{extended}"
    yield f"- Digest of the weights: {plain(model.blob)}"
    yield f"- Parameters: {model.layout.size:,} in {counted(len(model.layout.spans), 'tensor')}\n"


def _loading(model: ExportedModel) -> Iterator[str]:
    yield "## Load it\n"
    yield "```python\nfrom safetensors.torch import load_file  # or safetensors.numpy\n"
    yield 'weights = load_file("model.safetensors")\n```\n'
    yield (
        "`mlflow.pyfunc.load_model(FOLDER).predict(None)` gives the tensors as numpy arrays. The model's code is not "
        "in this folder: its participants have it.\n"
    )
    shown = model.layout.spans[:MAX_TENSORS]
    rows = [
        (plain(one.spec.name), " x ".join(map(str, one.spec.shape)) or "scalar", one.spec.dtype.name.lower())
        for one in shown
    ]
    yield table(("tensor", "shape>", "type"), rows)
    if len(model.layout.spans) > MAX_TENSORS:
        yield f"and {len(model.layout.spans) - MAX_TENSORS} more tensors\n"


def _training(model: ExportedModel) -> Iterator[str]:
    rounds = [one for one in model.detail.rounds if one.released and one.kind == "train" and one.version < model.round]
    yield "## Training\n"
    if rounds and not model.secret_draws:
        reports = [one.reported for one in rounds]
        span = f"{min(reports)}" if min(reports) == max(reports) else f"{min(reports)} to {max(reports)}"
        yield f"Each round averaged the updates of {span} participants.\n"
    keys = sorted(job_keys(model.detail.job_toml).items())
    yield table(("setting of the job", "value"), ((plain(key), plain(str(value))) for key, value in keys))


def _metrics(model: ExportedModel) -> Iterator[str]:
    found = measured(model)
    yield "## Metrics\n"
    if not found:
        yield "No metric was measured.\n"
        return
    yield "`history.csv` has all rounds.\n"
    rows = ((plain(one.name), figure(one.value, 6), _measured_by(one), str(one.step)) for one in found.values())
    yield table(("metric", "value>", "measured by", "model after round>"), rows)


def _measured_by(point: Point) -> str:
    return next((by for prefix, by in _KIND.items() if point.name.startswith(prefix)), "-")


def _data(model: ExportedModel) -> Iterator[str]:
    found = model.findings
    if found is None:
        return
    yield "## Data\n"
    who = counted(found.participants, "participant")
    yield f"{rows_words(found)} of {who}; `statistics.json` has all figures.\n"
    if found.noise is not None:
        yield "The figures have noise for differential privacy; `statistics.json` has the standard error of each.\n"
    if found.numeric:
        rows = (
            (plain(one.name), *map(figure, (one.count, one.missing, one.mean, one.deviation))) for one in found.numeric
        )
        yield table(("column", "count>", "missing>", "mean>", "deviation>"), rows)
    if found.categories:
        cells = [(one.name, level, rows) for one in found.categories for level, rows in one.counts.items()]
        yield table(
            ("column", "value", "rows>"), ((plain(name), plain(level), figure(rows)) for name, level, rows in cells)
        )


def _files(model: ExportedModel) -> Iterator[str]:
    yield "## Files\n"
    yield "- `model.safetensors`: the weights"
    yield "- `job.toml`: the job that trained them"
    yield "- `history.csv`: a row for each attempt at a round"
    if model.findings is not None:
        yield "- `statistics.json`: figures of the data"
    yield "- `MLmodel`, `requirements.txt`, `code/`: for MLflow\n"
