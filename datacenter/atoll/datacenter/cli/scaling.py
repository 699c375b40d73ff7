"""``atoll silo scaling``: how large a model, how long to train, on how many ranks."""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

import click

from atoll.datacenter.cli.output import json_option, print_json, print_table
from atoll.datacenter.machine import rates_of
from atoll.datacenter.scaling import LAWS, Law, Optimum, ScalingError, amdahl, gustafson, read_runs, speedup_of
from atoll.datacenter.scaling.fit import INTERVAL, Fit, Interval, fit_law
from atoll.datacenter.scaling.plot import draw
from atoll.datacenter.scaling.speedup import AMDAHL, GUSTAFSON, Kind
from atoll.settings.numbers import Finite

_DAY_S = 86_400
_FAR = 10
"""Multiple of the largest run's budget beyond which a value is marked as a prediction."""
_runs = click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def scaling() -> None:
    """Scaling laws, and scaling tables of measured runs."""


@scaling.command()
@click.option("--flops", type=Finite(0, min_open=True), help="Budget in FLOPs.")
@click.option("--gpus", type=click.IntRange(1), help="Instead: number of GPUs ...")
@click.option("--days", type=Finite(0, min_open=True), help="... for this many days ...")
@click.option("--gpu", default="h100", show_default=True, help="... of this kind (or a file of rates) ...")
@click.option(
    "--format", "number_format", default="bfloat16", show_default=True, help="... computing in this format ..."
)
@click.option(
    "--mfu", type=Finite(0, 1, min_open=True), default=0.4, show_default=True, help="... at this utilisation."
)
@json_option
def estimate(
    *,
    flops: float | None,
    gpus: int | None,
    days: float | None,
    gpu: str,
    number_format: str,
    mfu: float,
    json_output: bool,
) -> None:
    """Print the best size and number of tokens for a budget, by each published law."""
    if (flops is None) == (gpus is None or days is None):
        raise click.UsageError("give either --flops, or both --gpus and --days")
    if flops is None:
        flops = (gpus or 0) * (days or 0.0) * _DAY_S * rates_of(gpu).matmul(number_format) * mfu
    found = {name: (law, law.optimum(flops)) for name, law in LAWS.items()}
    if json_output:
        print_json({"flops": flops, "laws": {name: _as_json(law, best) for name, (law, best) in found.items()}})
        return
    print_table(
        ("law", "parameters>", "tokens>", "tokens/parameter>", "loss>", "source"),
        ((name, *_cells(best), law.source) for name, (law, best) in found.items()),
        title=f"budget: {flops:.3g} FLOPs = 6 * parameters * tokens",
    )
    click.echo("losses are on each paper's own data and tokenizer: compare within a law, not across laws")


@scaling.command()
@_runs
@click.option(
    "--flops", type=Finite(0, min_open=True), multiple=True, help="Predict for this budget too; can be repeated."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture: .svg, .png or .pdf.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the resampling.")
@json_option
def fit(*, files: tuple[Path, ...], flops: tuple[float, ...], plot: Path | None, seed: int, json_output: bool) -> None:
    """Fit L(N, D) = E + A/N^alpha + B/D^beta to your own runs, FILES of JSON lines."""
    runs = read_runs(files)
    found = fit_law(runs, seed=seed)
    if plot is not None:
        draw(found, runs, plot)
    budgets = flops or (found.largest_flops, found.largest_flops * _FAR)
    if json_output:
        print_json(_fit_json(found, budgets))
        return
    _print_fit(found, budgets)
    if plot is not None:
        click.echo(f"picture: {plot}")


@scaling.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--kind", type=click.Choice(("strong", "weak")), help="Default: determined from the tokens of a step.")
@click.option("--serial-share", type=Finite(0, 1), help="Without files: what the laws predict for this share.")
@click.option("--ranks", default="1,2,4,8,16,64,256,1024", show_default=True, help="Numbers of ranks for it.")
@json_option
def speedup(
    *, files: tuple[Path, ...], kind: Kind | None, serial_share: float | None, ranks: str, json_output: bool
) -> None:
    """Print the scaling table of measured runs, FILES of JSON lines, or what Amdahl and Gustafson predict."""
    if bool(files) == (serial_share is not None):
        raise click.UsageError("give either files of runs, or --serial-share")
    if serial_share is not None:
        _print_laws(serial_share, _whole_numbers(ranks), json_output=json_output)
        return
    found = speedup_of(read_runs(files), kind)
    if json_output:
        print_json(asdict(found))
        return
    print_table(
        ("ranks>", "tokens/s>", "speed-up>", "efficiency>", "not sped up>", "by the law>"),
        (
            (
                row.ranks,
                f"{row.tokens_per_s:,.0f}",
                f"{row.speedup:.2f}",
                f"{row.efficiency:.1%}",
                "-" if row.serial_share is None else f"{row.serial_share:.2%}",
                f"{row.predicted:.2f}",
            )
            for row in found.rows
        ),
        title=f"{found.kind} scaling; {found.formula} fits best with s = {found.serial_share:.3%}",
    )


def _print_laws(serial_share: float, ranks: list[int], *, json_output: bool) -> None:
    rows = [{"ranks": p, "amdahl": amdahl(serial_share, p), "gustafson": gustafson(serial_share, p)} for p in ranks]
    if json_output:
        print_json({"serial_share": serial_share, "rows": rows})
        return
    print_table(
        ("ranks>", "Amdahl>", "efficiency>", "Gustafson>", "efficiency>"),
        (
            (
                f"{row['ranks']:,}",
                f"{row['amdahl']:.2f}",
                f"{row['amdahl'] / row['ranks']:.1%}",
                f"{row['gustafson']:.2f}",
                f"{row['gustafson'] / row['ranks']:.1%}",
            )
            for row in rows
        ),
        title=f"s = {serial_share:g}; Amdahl, the same work: {AMDAHL}; Gustafson, as much more work: {GUSTAFSON}",
    )


def _print_fit(found: Fit, budgets: tuple[float, ...]) -> None:
    print_table(
        ("constant", "value>", "80 % of resampled fits>"),
        (
            (name, f"{getattr(found.law, name):.4g}", f"{low:.4g} to {high:.4g}")
            for name, (low, high) in _intervals(found).items()
        ),
        title=f"L(N, D) = E + A/N^alpha + B/D^beta, fitted to {found.runs} runs within {found.error:.2%} "
        "(root mean square)",
    )
    click.echo("")
    print_table(
        ("budget, FLOPs>", "x largest run>", "parameters>", "80 %>", "tokens>", "tokens/parameter>", "loss>", "80 %>"),
        (_prediction(found, budget) for budget in budgets),
    )
    for warning in found.warnings:
        click.echo(f"warning: {warning}")


def _prediction(found: Fit, budget: float) -> tuple[str, ...]:
    best, sizes, losses = _at(found, budget)
    parameters, tokens, ratio, loss = _cells(best)
    return (
        f"{budget:.3g}",
        f"{budget / found.largest_flops:.3g}",
        parameters,
        f"{sizes.low:.3g} to {sizes.high:.3g}",
        tokens,
        ratio,
        loss,
        f"{losses.low:.4g} to {losses.high:.4g}",
    )


def _fit_json(found: Fit, budgets: tuple[float, ...]) -> dict[str, object]:
    return {
        "law": asdict(found.law),
        "runs": found.runs,
        "error": found.error,
        "interval_share": INTERVAL,
        "intervals": _intervals(found),
        "largest_flops": found.largest_flops,
        "optima": [_optimum_json(found, budget) for budget in budgets],
        "warnings": list(found.warnings),
    }


def _optimum_json(found: Fit, budget: float) -> dict[str, object]:
    best, sizes, losses = _at(found, budget)
    intervals = {"parameters_interval": asdict(sizes), "loss_interval": asdict(losses)}
    return _as_json(found.law, best) | intervals


def _at(found: Fit, budget: float) -> tuple[Optimum, Interval, Interval]:
    """Return the best model for a budget, with the intervals of its size and loss."""
    sizes = found.interval(lambda law: law.optimum(budget).parameters)
    losses = found.interval(lambda law: law.optimum(budget).loss)
    return found.law.optimum(budget), sizes, losses


def _intervals(found: Fit) -> dict[str, tuple[float, float]]:
    names = ("irreducible", "a", "b", "alpha", "beta")
    intervals = {name: found.interval(attrgetter(name)) for name in names}
    return {name: (interval.low, interval.high) for name, interval in intervals.items()}


def _as_json(law: Law, best: Optimum) -> dict[str, object]:
    return asdict(best) | {"tokens_per_parameter": best.tokens_per_parameter, "source": law.source}


def _cells(best: Optimum) -> tuple[str, str, str, str]:
    return f"{best.parameters:.3g}", f"{best.tokens:.3g}", f"{best.tokens_per_parameter:.3g}", f"{best.loss:.4g}"


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ScalingError(f'--ranks "{text}": allowed are whole numbers with commas between them') from None
