"""Select the hook of ``[data_parallel] hook`` and attach it to a DDP module."""

# DDP compares a hook's annotations with the classes themselves: no ``from __future__ import annotations`` here.

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.compression.encoders import Int8, Signs
from atoll.datacenter.compression.hooks import FeedbackHook, GradientHook, HalfHook, LargestHook
from atoll.datacenter.compression.power_sgd import PowerSgdHook
from atoll.datacenter.job.parallel import DataParallelSection, Hook

Maker: TypeAlias = Callable[[DataParallelSection, Mapping[str, nn.Parameter], dist.ProcessGroup], GradientHook]

HOOKS: Mapping[Hook, Maker] = {
    "float16": lambda _section, _parameters, group: HalfHook(torch.float16, group),
    "bfloat16": lambda _section, _parameters, group: HalfHook(torch.bfloat16, group),
    "powersgd": lambda section, parameters, group: PowerSgdHook(
        parameters, group, section.hook_rank, section.hook_start
    ),
    "int8": lambda _section, parameters, group: FeedbackHook(parameters, group, Int8(), scatter=True),
    "sign": lambda _section, parameters, group: FeedbackHook(parameters, group, Signs(), scatter=False),
    "topk": lambda section, parameters, group: LargestHook(parameters, group, section.hook_keep),
}
"""Every hook except ``none``."""
_ATTRIBUTE = "gradient_hook"


def attach_hook(wrapped: DistributedDataParallel, section: DataParallelSection, group: dist.ProcessGroup) -> None:
    """Attach the hook that the job selects; ``hook`` is not ``none``."""
    parameters = {name: value for name, value in wrapped.module.named_parameters() if value.requires_grad}
    hook = HOOKS[section.hook](section, parameters, group)
    wrapped.register_comm_hook(_Runner(hook), run_hook)
    object.__setattr__(wrapped, _ATTRIBUTE, hook)  # nn.Module's own setter would search it for parameters


def hook_of(module: nn.Module) -> GradientHook | None:
    """Return the hook of a module, an ``Extra`` of checkpoints; None if gradients are sent uncompressed."""
    found: GradientHook | None = getattr(module, _ATTRIBUTE, None)
    return found


class _Runner:
    """Runs a hook in parallel with the backward pass.

    On a GPU a hook runs in a stream of its own, so that the backward pass continues; on a CPU it blocks. In both cases
    collectives start in the thread and in the order of DDP's calls, which is the same on every rank.
    """

    def __init__(self, hook: GradientHook) -> None:
        self.hook = hook
        self._stream: torch.cuda.Stream | None = None

    def run(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Reduce a bucket."""
        device = bucket.buffer().device
        if device.type != "cuda":
            self.hook.reduce(bucket)
            return _done(torch.futures.Future(), bucket)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self.hook.reduce(bucket)
            return _done(torch.futures.Future(devices=[device]), bucket)


def _done(future: torch.futures.Future[Tensor], bucket: GradBucket) -> torch.futures.Future[Tensor]:
    future.set_result(bucket.buffer())
    return future


def run_hook(runner: _Runner, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Run the hook on a bucket; DDP calls this."""
    return runner.run(bucket)
