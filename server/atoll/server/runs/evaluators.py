"""Evaluators: the operator's own code that judges released models on the server.

An evaluator is installed by name on the server's command line (``--evaluator NAME=MODULE:FUNCTION``); a job can only
name it. Code received over the network is never imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.server.rounds.judging import SERVER_METRIC
from atoll.server.stores import BlobStore
from atoll.wire.encoding import bfloat16_to_float32
from atoll.wire.layout import Dtype, Layout
from atoll.wire.views import tensor_views

log = logging.getLogger(__name__)

Evaluator = Callable[[Mapping[str, npt.NDArray[np.generic]]], Mapping[str, float]]
"""Takes the model, name → array (read-only; bfloat16 widened to float32), gives metric name → finite value."""

PATIENCE_S = 600.0
"""Seconds that a release waits for the evaluator before it continues without its metrics."""
MAX_METRICS = 256
_MAX_REASON_CHARS = 300
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")

AVERAGED_METRIC = f"{SERVER_METRIC}averaged/"
"""Prefix of the metric names of the mean of the released models."""


@dataclass(frozen=True)
class InPlace:
    """An evaluator that runs in the awaiting thread, for simulations, whose clock stands still meanwhile."""

    evaluate: Evaluator

    def __call__(self, model: Mapping[str, npt.NDArray[np.generic]]) -> Mapping[str, float]:
        """Judge a model."""
        return self.evaluate(model)


@dataclass(frozen=True)
class Judgement:
    """An evaluator's metrics of a model, named ``server/...``, and why some or all are missing."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


def load_evaluators(specifications: tuple[str, ...]) -> dict[str, Evaluator]:
    """Import the evaluators given as ``NAME=MODULE:FUNCTION``, from installed packages or the current folder.

    Raises:
        InvalidRequestError: for one that cannot be parsed or imported, or a duplicate name.
    """
    evaluators: dict[str, Evaluator] = {}
    if specifications and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # at the end, so that files there do not hide installed modules
    for text in specifications:
        name, _, target = text.partition("=")
        if not _NAME.fullmatch(name) or not all(target.partition(":")):
            raise InvalidRequestError(
                "evaluator.form",
                f"evaluator {text!r}: needs the form NAME=MODULE:FUNCTION, the name of a-z, 0-9, _ and -",
                "for example: --evaluator digits=my_package.evaluation:digits",
            )
        if name in evaluators:
            raise InvalidRequestError(
                "evaluator.twice", f"evaluator {name!r} is installed twice", "give each a name of its own"
            )
        evaluators[name] = _imported(text, target)
    return evaluators


async def judge(
    name: str, evaluator: Evaluator, layout: Layout, blobs: BlobStore, blob: str, prefix: str = SERVER_METRIC
) -> Judgement:
    """Have an evaluator judge a model. The release continues even if the operator's code fails."""

    def work() -> Judgement:
        with blobs.open(blob) as opened:
            return run_evaluator(name, evaluator, layout, opened.read(0, opened.manifest.size_bytes), prefix)

    try:
        if isinstance(evaluator, InPlace):
            return work()
        async with asyncio.timeout(PATIENCE_S):
            return await _in_own_thread(work, f"evaluator {name}")
    except Exception as error:
        log.exception("evaluator %s failed", name)
        return Judgement(failure=f"evaluator {name} failed: {type(error).__name__}: {error}"[:_MAX_REASON_CHARS])


def run_evaluator(
    name: str, evaluator: Evaluator, layout: Layout, blob: memoryview, prefix: str = SERVER_METRIC
) -> Judgement:
    """Judge a model; blocks. Metric names get the prefix; non-finite values are left out and reported.

    Raises:
        ValueError: if the evaluator gives too many values.
        Exception: any exception of the evaluator.
    """
    found = {metric: float(value) for metric, value in evaluator(_widened(layout, blob)).items()}
    if len(found) > MAX_METRICS:
        raise ValueError(f"the evaluator gave {len(found)} metrics, at most {MAX_METRICS}")
    left_out = [f"{metric} = {value}" for metric, value in found.items() if not math.isfinite(value)]
    failure = f"evaluator {name} gave {', '.join(left_out)}"[:_MAX_REASON_CHARS] if left_out else ""
    if failure:
        log.warning("%s: such values are not in the history", failure)
    return Judgement({prefix + metric: value for metric, value in found.items() if math.isfinite(value)}, failure)


def _imported(text: str, target: str) -> Evaluator:
    module, _, function = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise InvalidRequestError(
            "evaluator.import",
            f"evaluator {text!r} cannot be imported: {type(error).__name__}: {error}",
            "check the module's name, and that it can be imported from where the server is started",
        ) from error
    if not callable(found):
        raise InvalidRequestError(
            "evaluator.import", f"evaluator {text!r}: {target} cannot be called", "name a function of the model"
        )
    return cast("Evaluator", found)


async def _in_own_thread(work: Callable[[], Judgement], name: str) -> Judgement:
    """Run the operator's code in its own thread, which does not keep the server from stopping."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Judgement] = loop.create_future()

    def hand_over(result: Judgement | Exception) -> None:
        if done.done():
            return
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)

    def run() -> None:
        try:
            result: Judgement | Exception = work()
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting caller
            result = _as_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(hand_over, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


def _as_exception(error: BaseException) -> Exception:
    """The error in a form that a future can hold and that does not end an event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"it raised {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _widened(layout: Layout, blob: memoryview) -> dict[str, npt.NDArray[np.generic]]:
    views = tensor_views(layout, blob)
    for spec in layout.tensors:
        if spec.dtype is Dtype.BFLOAT16:
            views[spec.name] = bfloat16_to_float32(views[spec.name].view(np.uint16))
    return views
