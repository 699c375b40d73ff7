"""``atoll silo export``: a checkpoint as a folder that Hugging Face's libraries read."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import load_job
from atoll.datacenter.models.huggingface.export import export as write


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option("--step", type=click.IntRange(0), help="Of this step; the newest checkpoint by default.")
@json_option
def export(*, job_file: Path, out: Path, step: int | None, json_output: bool) -> None:
    """Write a job's checkpoint as config.json and .safetensors, adapters added in. Needs no GPU."""
    job = load_job(job_file)
    if job.checkpoint.folder is None:
        raise LayoutError(f"{job_file}: checkpoint.folder is not given: the job keeps no checkpoints")
    written = write(job, job_file.parent / job.checkpoint.folder, out, step)
    if json_output:
        print_json({"step": written, "folder": str(out)})
        return
    click.echo(f"step {written} written to {out}")
