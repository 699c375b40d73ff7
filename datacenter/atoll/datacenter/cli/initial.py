"""``atoll silo initial``: write the model that a federation of silos starts from."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.datacenter.cli.output import json_option, print_json
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import load_job


@click.command()
@click.argument("job_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .safetensors file to write."
)
@json_option
def initial(*, job_file: Path, out: Path, json_output: bool) -> None:
    """Write the initial weights of a job's trained parameters, for the server's job to start from."""
    job = load_job(job_file)
    try:
        layout = write_initial(job, out)
    except OSError as error:
        raise click.ClickException(f"cannot write {out}: {error.strerror}") from error
    if json_output:
        print_json({"file": str(out), "tensors": len(layout.tensors), "elements": layout.size})
        return
    click.echo(f"{len(layout.tensors)} tensors of {layout.size:,} elements written to {out}")
