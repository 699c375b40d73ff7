"""``[evaluation]``, ``[checkpoint]``, ``[faults]``, ``[processes]``, ``[metrics]``: how a long job runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section

Numa = Literal["none", "node", "socket", "exclusive", "core-complex"]


class EvaluationSection(Section):
    """Loss on held-out data while a job trains; see [evaluation](datacenter/evaluation.md)."""

    every_steps: Annotated[
        int,
        Field(ge=1, description="Steps between evaluations. The first is before step 1, the last after the last step."),
    ]
    sequences: Annotated[
        int,
        Field(ge=1, le=1 << 30, description="Held-out sequences of one evaluation; all of them if there are fewer."),
    ] = 256
    path: Annotated[
        str | None,
        Field(
            min_length=1,
            description='Held-out file or folder for `source = "tokens"` and `"text"`, relative to the job file. '
            "Other sources have a held-out part.",
        ),
    ] = None


class CheckpointSection(Section):
    """When and where checkpoints are written."""

    folder: Annotated[
        str | None, Field(description="Folder of the checkpoints, relative to the job file. Without it there are none.")
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
    asynchronous: Annotated[bool, Field(description="Training continues while a checkpoint is written.")] = True

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find settings of checkpoints that are not written."""
        if self.folder is None:
            yield from self.unused(("every_steps", "failure_hours", "keep", "asynchronous"), "no folder is given")
        if self.every_steps is not None:
            yield from self.unused(("failure_hours",), "every_steps is given")


class FaultsSection(Section):
    """What happens when a rank is lost or hangs."""

    max_restarts: Annotated[
        int, Field(ge=0, le=10_000, description="Maximum number of restarts after ranks are lost.")
    ] = 3
    collective_timeout_s: Annotated[
        float,
        Field(
            gt=0, le=86_400, description="A collective that takes longer ends the job; the error names rank and call."
        ),
    ] = 600.0
    min_world: Annotated[
        int | None,
        Field(ge=1, description="Smallest number of processes to continue with after nodes are lost."),
        Hint(default="the number that the job started with"),
    ] = None
    recovery: Annotated[
        Literal["restart", "in-place"],
        Field(
            description="`restart`: when a rank is lost, all restart from the last checkpoint. `in-place`: each of the "
            "`mesh.dp_replicate` replicas is a group of its own; if one is lost, the others continue, and it rejoins "
            "with their state. See [recovery in place](datacenter/recovery-in-place.md)."
        ),
    ] = "restart"
    backup_replicas: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 16,
            description="Replica groups that a step does not wait for (Chen et al. 2016): its mean is over the groups "
            "that are ready first. With `in-place`.",
        ),
    ] = 0
    speculate_after: Annotated[
        float | None,
        Field(
            ge=1,
            le=1000,
            description="A replica group is late when its micro-batches take this many times as long as those of the "
            "faster half of the groups. One of the faster groups then runs them too, and the first result counts (Dean "
            "and Ghemawat 2004). With `in-place`, without `backup_replicas`.",
        ),
        Hint(default="none: a step waits for late groups"),
    ] = None
    min_replicas: Annotated[
        int,
        Field(
            ge=1,
            le=1 << 16,
            description="With fewer replica groups a step waits until enough are ready to rejoin. With `in-place`.",
        ),
    ] = 1

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find settings that belong to the other kind of recovery."""
        if self.recovery == "restart":
            yield from self.unused(("backup_replicas", "speculate_after", "min_replicas"), 'recovery = "restart"')
        else:
            yield from self.unused(("min_world",), 'recovery = "in-place"')
        if self.backup_replicas:
            yield from self.unused(("speculate_after",), "backup_replicas leaves late groups out of a step")

    @property
    def leaves_late_behind(self) -> bool:
        """Whether a step may end while a replica group is still in its pass."""
        return self.backup_replicas > 0 or self.speculate_after is not None


class ProcessesSection(Section):
    """How the ranks' processes use the machine."""

    collect_every_steps: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 20,
            description="Python's garbage collector runs after every so many steps, on all ranks at the same time; 0: "
            "when Python decides.",
        ),
    ] = 50
    numa: Annotated[
        Numa,
        Field(
            description="Processors that `atoll silo train` and `join` bind a rank to: those of its GPU's NUMA `node` "
            "or `socket`, an `exclusive` part of them, or a `core-complex`. Needs GPUs and numactl."
        ),
    ] = "none"


class MetricsSection(Section):
    """What a job reports while it runs, and where."""

    every_steps: Annotated[int, Field(ge=1, description="Steps between lines of progress.")] = 10
    json_lines: Annotated[
        str | None,
        Field(
            description="File that records are appended to, relative to the job file. `atoll silo scaling` reads it."
        ),
    ] = None
    tensorboard: Annotated[str | None, Field(description="Folder for TensorBoard, relative to the job file.")] = None
    port: Annotated[int | None, Field(ge=1, le=65_535, description="Port of rank 0's Prometheus metrics.")] = None
    host: Annotated[str, Field(min_length=1, description="Address of the Prometheus metrics.")] = "127.0.0.1"
    rates: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Peak rate for the MFU: the name of a data sheet, or a .json file written by `atoll silo "
            "bench`, relative to the job file.",
        ),
        Hint(default="the data sheet of the GPU found; on a CPU there is no MFU"),
    ] = None
    profile_steps: Annotated[
        tuple[int, int] | None,
        Field(strict=False, description="First and last step of a profiler trace, counted from 1."),
        Hint(allowed="two whole numbers from 1, the second not below the first"),
    ] = None
    profile_folder: Annotated[str, Field(min_length=1, description="Folder for traces.")] = "traces"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find a profile that ends before it starts, or starts before the first step."""
        if self.profile_steps is not None and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            yield "profile_steps", "allowed are the first and the last step to trace, counted from 1"
