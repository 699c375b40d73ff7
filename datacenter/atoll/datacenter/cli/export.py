"""``atoll silo export``: write a checkpoint, or a run's model, as a folder for Hugging Face's libraries."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.datacenter.checkpoint.export import export as write
from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.released import export_released
from atoll.datacenter.job import load_job


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option("--step", type=click.IntRange(0), help="Step of the checkpoint; the newest by default.")
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A federation's model, written by atoll run model, instead of a checkpoint.",
)
@json_option
def export(*, job_file: Path, out: Path, step: int | None, model: Path | None, json_output: bool) -> None:
    """Write a job's checkpoint as config.json and .safetensors, adapters merged. Needs no GPU.

    A module of your own becomes one model.safetensors, with the names of its parameters and buffers.

    With --model, trained weights come from a federation's release, and frozen weights from model.weights.
    """
    job = load_job(job_file)
    if model is not None:
        if step is not None:
            raise click.UsageError(
                "--step selects a checkpoint and --model a federation's model: give only one of them"
            )
        tensors = export_released(job, model, out)
        sentence, answer = f"{tensors} tensors of {model} written to {out}", {"tensors": tensors, "folder": str(out)}
    else:
        if job.checkpoint.folder is None:
            raise LayoutError(f"{job_file}: checkpoint.folder is not set: the job keeps no checkpoints")
        written = write(job, job_file.parent / job.checkpoint.folder, out, step)
        sentence, answer = f"step {written} written to {out}", {"step": written, "folder": str(out)}
    if json_output:
        print_json(answer)
        return
    click.echo(sentence)
