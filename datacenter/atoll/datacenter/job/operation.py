"""``[checkpoint]``, ``[faults]``, ``[metrics]``: how a long job is kept alive and watched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from atoll.settings import Hint, Section


class CheckpointSection(Section):
    """When and where the whole state is kept."""

    folder: Annotated[
        str | None, Field(description="Folder of the checkpoints, relative to the job file. Without it none are kept.")
    ] = None
    every_steps: Annotated[
        int | None,
        Field(ge=1, description="Steps between checkpoints."),
        Hint(default="chosen from the measured cost and `failure_hours` (Young 1974, Daly 2006)"),
    ] = None
    failure_hours: Annotated[
        float, Field(gt=0, description="Mean time between failures of the whole job, in hours.")
    ] = 24.0
    keep: Annotated[int, Field(ge=1, le=1000, description="Checkpoints kept.")] = 2
    asynchronous: Annotated[bool, Field(description="Training goes on while a checkpoint is written.")] = True

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Settings of checkpoints that are not kept."""
        if self.folder is None:
            yield from self.unused(("every_steps", "failure_hours", "keep", "asynchronous"), "no folder is given")
        if self.every_steps is not None:
            yield from self.unused(("failure_hours",), "every_steps is given")


class FaultsSection(Section):
    """What happens when a rank is lost or hangs."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000, description="Times that lost ranks are started again.")] = 3
    collective_timeout_s: Annotated[
        float,
        Field(gt=0, le=86_400, description="A collective that takes longer ends the job, naming rank and collective."),
    ] = 600.0
    min_world: Annotated[
        int | None,
        Field(ge=1, description="Smallest number of processes to go on with after nodes are lost."),
        Hint(default="the number that it started with"),
    ] = None


class MetricsSection(Section):
    """What is told of the job while it runs."""

    every_steps: Annotated[int, Field(ge=1, description="Steps between lines of progress.")] = 10
    json_lines: Annotated[
        str | None,
        Field(
            description="File that records are appended to, relative to the job file; `atoll silo scaling` reads it."
        ),
    ] = None
    tensorboard: Annotated[str | None, Field(description="Folder for TensorBoard, relative to the job file.")] = None
    port: Annotated[int | None, Field(ge=1, le=65_535, description="Rank 0 serves Prometheus metrics here.")] = None
    host: Annotated[str, Field(min_length=1, description="Address that those are served on.")] = "127.0.0.1"
    rates: Annotated[
        str | None,
        Field(
            min_length=1,
            description="What MFU is a share of: a data sheet's name, or a .json file that `atoll silo bench` wrote, "
            "relative to the job file.",
        ),
        Hint(default="the data sheet of the GPU that is found; on a CPU there is no MFU"),
    ] = None
    profile_steps: Annotated[
        tuple[int, int] | None,
        Field(strict=False, description="First and last step of a profiler trace, counted from 1."),
        Hint(allowed="two whole numbers from 1, the second not below the first"),
    ] = None
    profile_folder: Annotated[str, Field(min_length=1, description="Folder for traces.")] = "traces"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A profile that ends before it starts, or starts before the first step."""
        if self.profile_steps is not None and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            yield "profile_steps", "allowed are the first and the last step to trace, counted from 1"
