"""Rows that turn one thing off: a step with it beside one without, and the peak memory of both.

What a job cannot turn off, because it is always better or equal, is replaced in the process that measures.

Settings that need several ranks are measured by as many processes, one for each GPU, and those of a process's start by
processes with it and without: ``python -m benchmarks.silo.gpu.toggles NAME`` is one of them, started by torchrun. A row
that this machine has too few GPUs for, or no program, says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from atoll.datacenter.elastic.environment import ALLOCATOR_VARIABLES
from atoll.datacenter.job import SiloJob
from atoll.datacenter.parallel import cross_entropy, data, loss
from atoll.datacenter.train.trainer import Trainer
from benchmarks.figures import Figure
from benchmarks.options import progress
from benchmarks.silo.gpu.sizes import FULL, SMOKE, Size
from benchmarks.silo.gpu.speed import alone, one_rank

COMMAND = "python -m benchmarks.silo gpu"
_TIMEOUT_S = 900.0
_SMOKE = "--smoke"
_WAYS = ("using", "without")
Sections = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Start:
    """How processes are started.

    Attributes:
        options: of torchrun.
        variables: of the environment.
    """

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Toggle:
    """What can be left out.

    Attributes:
        common: sections of both jobs.
        using: sections of the job with it.
        without: sections of the job without it.
        replaced: a context in which the job without it is measured.
        started: how processes with it and without it are started, if that is the difference.
        ranks: processes.
        on_cpu: whether a smoke run on a CPU can run it.
        program: a program that it needs.
    """

    common: Sections
    using: Sections
    without: Sections
    replaced: Callable[[], AbstractContextManager[object]] = nullcontext
    started: tuple[Start, Start] | None = None
    ranks: int = 1
    on_cpu: bool = True
    program: str = ""


_MOE = {"experts": 8, "top_k": 2, "expert_dim": 1408, "capacity_factor": 1.0}
_FLOAT8 = {"compute": "float8"}
_COMPILED = {"compile": True}
_LARGE_VOCAB = {"vocab": FULL.large_vocab}
_GROWING, _FIXED = (
    Start(variables={ALLOCATOR_VARIABLES[0]: f"expandable_segments:{grow}"}) for grow in ("True", "False")
)


def _looping(adamw: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Make an optimiser that updates all parameters by PyTorch's loop over them."""
    return adamw(*args, **{**settings, "fused": False})


def _without_prefetch() -> AbstractContextManager[object]:
    """Let each unit of FSDP gather itself in the backward pass, when its turn comes."""

    def alone_in_turn(module: Any, **settings: Any) -> None:
        fully_shard(module, **settings)
        first = module[0] if isinstance(module, list) else module
        first.set_modules_to_backward_prefetch([first])

    return patch.object(data, "fully_shard", alone_in_turn)


def _interpreted(part: ModuleType) -> Callable[[], AbstractContextManager[object]]:
    """Return a context in which a module of the loss does not compile it."""
    return lambda: patch.object(part, "compiled", lambda function: function)


TOGGLES: Mapping[str, Toggle] = {
    "collector in step": Toggle(
        {}, {"processes": {"collect_every_steps": 50}}, {"processes": {"collect_every_steps": 0}}
    ),
    "fused optimiser": Toggle({}, {}, {}, lambda: patch("torch.optim.AdamW", partial(_looping, torch.optim.AdamW))),
    "figures read a step later": Toggle({}, {}, {}, lambda: patch.object(Trainer, "queue", Trainer.advance)),
    "attention by cuDNN or FlashAttention beside PyTorch's own": Toggle(
        {}, {}, {}, lambda: sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    ),
    "compiled blocks": Toggle({}, {"memory": _COMPILED}, {"memory": {"compile": False}}, on_cpu=False),
    "compiled loss of whole logits": Toggle(
        {"model": _LARGE_VOCAB, "memory": {**_COMPILED, "loss_chunk_tokens": 0}},
        {},
        {},
        _interpreted(loss),
        on_cpu=False,
    ),
    "compiled loss in chunks": Toggle(
        {"model": _LARGE_VOCAB, "memory": _COMPILED}, {}, {}, _interpreted(cross_entropy), on_cpu=False
    ),
    "evaluation after each step": Toggle({}, {"evaluation": {"every_steps": 1, "sequences": 8}}, {}),
    "expandable segments": Toggle({}, {}, {}, started=(_GROWING, _FIXED), on_cpu=False),
    "bound to the GPU's NUMA node": Toggle(
        {}, {}, {}, started=(Start(("--numa-binding", "node")), Start()), on_cpu=False, program="numactl"
    ),
    "units of the first and last layers": Toggle(
        {}, {}, {}, lambda: patch.object(data, "_ends", lambda *_: ()), ranks=2
    ),
    "units gathered ahead in the backward pass": Toggle({}, {}, {}, _without_prefetch, ranks=2),
    "selective recomputation": Toggle({}, {"memory": {"checkpointing": "selective"}}, {}),
    "padded experts": Toggle({}, {"model": {"moe": {**_MOE, "padded": True}}}, {"model": {"moe": _MOE}}),
    "float8 by row beside by tensor": Toggle(
        {}, {"precision": {**_FLOAT8, "float8_scaling": "row"}}, {"precision": _FLOAT8}, on_cpu=False
    ),
    "float8 gather": Toggle(
        {}, {"precision": {**_FLOAT8, "float8_gather": True}}, {"precision": _FLOAT8}, ranks=2, on_cpu=False
    ),
    "float8 with tp": Toggle({"mesh": {"tp": 2}}, {"precision": _FLOAT8}, {}, ranks=2, on_cpu=False),
    "async tp": Toggle(
        {"mesh": {"tp": 2}, "memory": _COMPILED}, {"tensor_parallel": {"asynchronous": True}}, {}, ranks=2, on_cpu=False
    ),
    "inputs of tp gathered again": Toggle({"mesh": {"tp": 2}}, {"memory": {"checkpointing": "gathered"}}, {}, ranks=2),
    "ring with fused kernels": Toggle(
        {"mesh": {"cp": 2}},
        {"context_parallel": {"method": "ring"}},
        {"context_parallel": {"method": "ring", "kernels": "plain"}},
        ranks=2,
    ),
    "padded experts with ep": Toggle(
        {"mesh": {"ep": 2}}, {"model": {"moe": {**_MOE, "padded": True}}}, {"model": {"moe": _MOE}}, ranks=2
    ),
    "selective recomputation with ep": Toggle(
        {"mesh": {"ep": 2}, "model": {"moe": {**_MOE, "padded": True}}},
        {"memory": {"checkpointing": "selective"}},
        {},
        ranks=2,
    ),
}


def turned_off(size: Size) -> Iterator[Figure]:
    """Each setting of ``TOGGLES`` that this machine can run.

    Raises:
        ExceptionGroup: at the end, with the errors of the settings that failed.
    """
    failures: list[Exception] = []
    for name, toggle in TOGGLES.items():
        if reason := _missing(toggle):
            progress(f"gpu: {name}: not run: {reason}")
            continue
        progress(f"gpu: {name}")
        try:
            found = measured(toggle, size) if _in_this_process(toggle) else _by_ranks(name, toggle, size)
        except Exception as failure:  # noqa: BLE001  # the other settings are measured all the same; raised below
            progress(f"gpu: {name} is left out:\n{traceback.format_exc()}")
            failures.append(failure)
            continue
        yield Figure.stated(f"{name}, beside without", found["without"] / found["using"], "times", COMMAND)
        for way in _WAYS:
            if peak := found[f"{way}, bytes"]:
                yield Figure.stated(f"  peak memory {way} it", peak / 2**30, "GiB", COMMAND)
    if failures:
        raise ExceptionGroup("settings that could not be measured", failures)


def _missing(toggle: Toggle) -> str:
    """Return what this machine lacks for a setting; nothing if it can run."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus < toggle.ranks and not (gpus == 0 and toggle.on_cpu):
        return f"needs {toggle.ranks} GPUs, this machine has {gpus}"
    if toggle.program and shutil.which(toggle.program) is None:
        return f"needs the program {toggle.program}"
    return ""


def _in_this_process(toggle: Toggle) -> bool:
    return toggle.ranks == 1 and toggle.started is None


def measured(toggle: Toggle, size: Size, ways: Sequence[str] = _WAYS) -> dict[str, float]:
    """Return seconds of a step and peak bytes of both jobs, or of one, by this rank."""
    found: dict[str, float] = {}
    for way in ways:
        with toggle.replaced() if way == "without" else nullcontext():
            found[way] = alone(job_of(toggle, way, size), size)
        found[f"{way}, bytes"] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0.0
    return found


def job_of(toggle: Toggle, way: str, size: Size) -> SiloJob:
    """Return the job with a setting (``using``) or ``without`` it."""
    asked = _merged(toggle.common, toggle.using if way == "using" else toggle.without)
    memory = {"compile": size.compiled, **asked.pop("memory", {})}
    model = {**size.billion, **asked.pop("model", {})}
    return size.job(model, size.batch, memory=memory, **asked)


def _merged(common: Sections, sections: Sections) -> dict[str, dict[str, Any]]:
    return {name: {**common.get(name, {}), **sections.get(name, {})} for name in {*common, *sections}}


def _by_ranks(name: str, toggle: Toggle, size: Size) -> dict[str, float]:
    """Return what rank 0 of as many processes measured; of two such jobs, if they are started differently."""
    if toggle.started is None:
        return _printed(name, toggle, size, Start(), _WAYS)
    using, without = (
        _printed(name, toggle, size, start, (way,)) for way, start in zip(_WAYS, toggle.started, strict=True)
    )
    return using | without


def _printed(name: str, toggle: Toggle, size: Size, start: Start, ways: Sequence[str]) -> dict[str, float]:
    """Run ``main`` in as many processes, and return what rank 0 printed.

    Raises:
        RuntimeError: with the ranks' output, if they failed.
    """
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(toggle.ranks), *start.options)
    flags = (_SMOKE,) if size is SMOKE else ()
    command = [sys.executable, *run, "-m", "benchmarks.silo.gpu.toggles", name, *ways, *flags]
    environment = {**os.environ, **start.variables}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr[-4000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main(arguments: list[str]) -> None:
    """Measure one setting, with it, without it or both, as one rank of several; rank 0 prints JSON."""
    ways = tuple(way for way in _WAYS if way in arguments)
    with one_rank():  # of both jobs: the ranks meet once
        found = measured(TOGGLES[arguments[0]], SMOKE if _SMOKE in arguments else FULL, ways)
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
