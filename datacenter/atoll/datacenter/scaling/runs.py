"""Measured runs, from files written by training (``metrics.json_lines``) or from your own lines.

A file is JSON lines. A file written by training has a line ``{"run": facts}`` and one line per record; it is one run.
Any other line is one run, with the keys of ``MeasuredRun``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.datacenter.scaling.laws import ScalingError

MAX_LINES = 1_000_000
LAST_SHARE = 0.05
"""A run's loss is the mean over this share of its last records, as the loss of a single batch is noisy."""

T = TypeVar("T", bound=BaseModel)
_Count = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MeasuredRun(BaseModel):
    """One training run.

    Attributes:
        name: name of the run.
        ranks: number of processes.
        parameters: parameters of the model.
        tokens: tokens trained on by the end.
        loss: loss at the end, in nats per token.
        tokens_per_s: of all ranks together, median over records except the first, which includes warm-up.
        tokens_per_step: tokens of one step, all ranks together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    ranks: Annotated[int, Field(ge=1)] | None = None
    parameters: _Count | None = None
    tokens: _Count | None = None
    loss: _Count | None = None
    tokens_per_s: _Count | None = None
    tokens_per_step: _Count | None = None


class _Facts(BaseModel):
    job: str
    world_size: Annotated[int, Field(ge=1)]
    parameters: _Count


class _Record(BaseModel):
    step: int
    steps: Annotated[int, Field(ge=1)]
    loss: float | None
    tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]


def read_runs(paths: Sequence[Path]) -> list[MeasuredRun]:
    """Return the runs of these files, in order.

    Raises:
        ScalingError: if a file is empty or has other content; names file, line and key.
        OSError: if a file cannot be read.
    """
    return [run for path in paths for run in _runs_of(path)]


def _runs_of(path: Path) -> Iterator[MeasuredRun]:
    facts: _Facts | None = None
    records: dict[int, _Record] = {}
    found = 0
    for number, line in _lines(path):
        place = f"{path}:{number}"
        value = _parsed(line, place)
        if "run" in value:
            facts = _valid(_Facts, value["run"], place)
        elif "step" in value:
            record = _valid(_Record, value, place)
            records[record.step] = record
        elif "evaluation" not in value:
            found += 1
            yield _valid(MeasuredRun, value, place)
    if records:
        found += 1
        yield _summary(path, facts, records)
    if not found:
        raise ScalingError(f"{path}: contains no run; training writes such files with metrics.json_lines")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if number > MAX_LINES:
                raise ScalingError(f"{path}: more than {MAX_LINES:,} lines")
            if line.strip():
                yield number, line


def _parsed(line: str, place: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ScalingError(f"{place}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ScalingError(f"{place}: {type(value).__name__}; a line must be an object")
    return value


def _valid(kind: type[T], value: object, place: str) -> T:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ScalingError(f"{place}: {said}") from None


def _summary(path: Path, facts: _Facts | None, records: dict[int, _Record]) -> MeasuredRun:
    if facts is None:
        raise ScalingError(f'{path}: records without a line {{"run": ...}} before them')
    ordered = [records[step] for step in sorted(records)]
    losses = [record.loss for record in ordered if record.loss is not None]
    last = losses[-max(1, int(len(losses) * LAST_SHARE)) :]
    warm = [record for record in ordered[1:] or ordered if record.seconds > 0 and record.tokens > 0]
    return MeasuredRun(
        name=path.stem,
        ranks=facts.world_size,
        parameters=facts.parameters,
        tokens=ordered[-1].total_tokens or None,
        loss=fmean(last) if last else None,
        tokens_per_s=median(record.tokens / record.seconds for record in warm) if warm else None,
        tokens_per_step=median(record.tokens / record.steps for record in warm) if warm else None,
    )
