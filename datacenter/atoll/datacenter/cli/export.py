"""``atoll silo export``: write a checkpoint as a folder for Hugging Face's libraries."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.datacenter.checkpoint.export import export as write
from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import load_job


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option("--step", type=click.IntRange(0), help="Step of the checkpoint; the newest by default.")
@json_option
def export(*, job_file: Path, out: Path, step: int | None, json_output: bool) -> None:
    """Write a job's checkpoint as config.json and .safetensors, adapters merged. Needs no GPU."""
    job = load_job(job_file)
    if job.checkpoint.folder is None:
        raise LayoutError(f"{job_file}: checkpoint.folder is not set: the job keeps no checkpoints")
    written = write(job, job_file.parent / job.checkpoint.folder, out, step)
    if json_output:
        print_json({"step": written, "folder": str(out)})
        return
    click.echo(f"step {written} written to {out}")
