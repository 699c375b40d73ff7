"""``atoll silo bench``: measure this machine, and compare with the cost models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from atoll.datacenter.cli.output import json_option, print_json, print_table
from atoll.datacenter.machine.cost import MODELS, Algorithm
from atoll.datacenter.machine.rates import Link, save_rates
from atoll.settings.numbers import Finite

if TYPE_CHECKING:
    from atoll.datacenter.machine.collectives import Point
    from atoll.datacenter.machine.measured import Measured, Progress
    from atoll.datacenter.machine.timing import Timing

MODULE = "atoll.datacenter.cli.bench"
_COLUMNS: tuple[tuple[Algorithm, ...], ...] = (("ring", "pairwise"), ("tree",), ("double_tree",))
_SIGNALLED = 128
TIMEOUT_S = 600.0
"""Timeout of a collective, in seconds."""


@click.command()
@click.option("--nproc", type=click.IntRange(1), help="Processes on this node. [default: its GPUs; without any, 2]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rates for `atoll silo plan`.")
@click.option("--max-mb", type=Finite(0.001), help="Largest buffer of a collective, in MiB.")
@click.option("--inter-gb-per-s", type=Finite(0, min_open=True), help="On one node: bandwidth between nodes.")
@click.option("--inter-alpha-us", type=Finite(0), default=14.0, show_default=True, help="Startup time between nodes.")
@click.option("--smoke", is_flag=True, help="Use tiny sizes, to check that everything runs.")
@json_option
def bench(
    *,
    nproc: int | None,
    out: Path | None,
    max_mb: float | None,
    inter_gb_per_s: float | None,
    inter_alpha_us: float,
    smoke: bool,
    json_output: bool,
) -> None:
    """Measure collectives, matrix products and memory of this machine, on all of its GPUs or on CPU processes.

    On several nodes start it with torchrun on each: torchrun --nnodes ... -m atoll.datacenter.cli.bench --out FILE
    """
    if "RANK" not in os.environ:
        _start(nproc)
        return
    inter = None if inter_gb_per_s is None else Link(alpha_s=inter_alpha_us / 1e6, bytes_per_s=inter_gb_per_s * 1e9)
    _measure(out, max_mb, inter, smoke=smoke, json_output=json_output)


def _start(nproc: int | None) -> None:
    """Run this command once for each process; torchrun's agent is this process, which has to load torch once only."""
    from torch.distributed import run  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    from atoll.datacenter.elastic.event_names import name_events_quickly  # noqa: PLC0415

    torchrun: Any = run  # torch leaves its functions untyped
    count = nproc or _gpus() or 2
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    name_events_quickly()
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as logs:  # torchrun does not remove its log folder
        launch = ["--standalone", f"--nproc-per-node={count}", f"--log-dir={logs}"]
        try:
            torchrun.run(torchrun.parse_args([*launch, "-m", MODULE, *_arguments()]))
        except ChildFailedError as error:
            code = error.get_first_failure()[1].exitcode
            raise click.ClickException(
                f"the measurement ended with exit code {code}; the reason is printed above"
            ) from error
        except SignalException as error:
            raise click.exceptions.Exit(_SIGNALLED + error.sigval) from error


def _gpus() -> int:
    import torch  # noqa: PLC0415  # seconds, and only here

    return torch.cuda.device_count()


def _arguments() -> list[str]:
    """Return the arguments of this command as typed, without the number of processes."""
    context = click.get_current_context()
    given: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name != "nproc" and value is not None and value is not False:
            given += [parameter.opts[0], *([] if value is True else [str(value)])]
    return given


def _measure(out: Path | None, max_mb: float | None, inter: Link | None, *, smoke: bool, json_output: bool) -> None:
    from atoll.datacenter.machine.measured import MIB, ON_CPU, ON_GPU, SMOKE, measure_machine  # noqa: PLC0415  # torch
    from atoll.datacenter.mesh import join_world  # noqa: PLC0415

    with join_world(TIMEOUT_S) as world:
        extent = SMOKE if smoke else ON_GPU if world.device.type == "cuda" else ON_CPU
        if max_mb is not None:
            extent = replace(extent, collective_bytes=int(max_mb * MIB))
        with _progress(shown=world.is_first) as tell:
            found = measure_machine(world, extent, tell, inter=inter)
    if not world.is_first:
        return
    if out is not None:
        save_rates(found.rates, out)
    if json_output:
        print_json(_as_json(found))
        return
    _print(found)
    if out is not None:
        click.echo(f"rates: {out}")


def _print(found: Measured) -> None:
    rates = found.rates
    click.echo(f"{rates.name}, {rates.memory_bytes / 1e9:.1f} GB a rank; {rates.source}; {found.seconds:.0f} s\n")
    print_table(
        ("one rank", "size>", "rate>", "time>", "spread>"),
        [
            *(
                (
                    f"matrix product, {one.number_format}",
                    f"{one.size}",
                    f"{one.flops_per_s / 1e12:.3g} TFLOP/s",
                    *_time(one.timing),
                )
                for one in found.matmuls
            ),
            (
                "memory, copy",
                f"{found.memory.size_bytes / 1e6:.0f} MB",
                f"{found.memory.bytes_per_s / 1e9:.3g} GB/s",
                *_time(found.memory.timing),
            ),
        ],
    )
    for name, points, link in (("within", found.intra, rates.intra), ("between", found.inter, rates.inter)):
        if points:
            _print_collectives(f"{name} nodes, {points[0].ranks} ranks", points, link)


def _print_collectives(title: str, points: Sequence[Point], link: Link) -> None:
    click.echo("")
    print_table(
        ("collective", "KiB>", "time>", "spread>", "bus GB/s>", "/ ring>", "/ tree>", "/ two trees>"),
        (
            (
                point.collective,
                f"{point.size_bytes / 1024:,.0f}",
                *_time(point.timing),
                f"{point.bus_bytes_per_s / 1e9:.3g}",
                *(_ratio(ratios, names) for names in _COLUMNS),
            )
            for point in points
            for ratios in (_ratios(point, link),)
        ),
        title=f"{title}: alpha {link.alpha_s * 1e6:.3g} us, {link.bytes_per_s / 1e9:.3g} GB/s each way, fitted to "
        "rings; measured time / that of the models (all_to_all: ring = pairwise)",
    )


def _ratio(ratios: Mapping[Algorithm, float], names: Sequence[Algorithm]) -> str:
    return next((f"{ratios[name]:.2f}" for name in names if name in ratios), "-")


def _ratios(point: Point, link: Link) -> dict[Algorithm, float]:
    """Return the measured seconds divided by each model's."""
    models: list[Algorithm] = [algorithm for collective, algorithm in MODELS if collective == point.collective]
    found: dict[Algorithm, float] = {algorithm: point.model_s(algorithm, link) for algorithm in models}
    return {algorithm: point.timing.seconds / seconds for algorithm, seconds in found.items() if seconds > 0}


def _time(timing: Timing) -> tuple[str, str]:
    return f"{timing.seconds * 1e6:,.1f} us", f"{timing.spread:.1%}"


def _as_json(found: Measured) -> dict[str, object]:
    links = {"intra": (found.intra, found.rates.intra), "inter": (found.inter, found.rates.inter)}
    return {
        "rates": found.rates.model_dump(),
        "seconds": found.seconds,
        "matmuls": [asdict(one) for one in found.matmuls],
        "memory": asdict(found.memory),
        "collectives": {
            name: [
                asdict(point) | {"bus_bytes_per_s": point.bus_bytes_per_s, "measured_by_model": _ratios(point, link)}
                for point in points
            ]
            for name, (points, link) in links.items()
        },
    }


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress]:
    """Show a bar on standard error, on the first rank only, and only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("")

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show


if __name__ == "__main__":
    bench()
