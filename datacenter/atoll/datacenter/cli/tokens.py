"""``atoll silo tokens``: convert text to a token file, or check token files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from atoll.datacenter.cli.output import json_option, print_json, print_table
from atoll.datacenter.data.text import find_files
from atoll.datacenter.data.token_file import Header, read_header, verify
from atoll.datacenter.data.tokenise import tokenise
from atoll.datacenter.data.tokenizer import BYTES, HuggingFaceTokenizer, Tokenizer, open_tokenizer


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The token file to write.")
@click.option(
    "--tokenizer", default=BYTES, show_default=True, metavar="bytes|FILE", help="Or the path of a tokenizer.json."
)
@click.option("--end-token", metavar="TOKEN", help="Append this token to each document, e.g. <|endoftext|>.")
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=min(8, os.cpu_count() or 1),
    show_default="the machine's, up to 8",
    help="Processes that tokenise.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--check", is_flag=True, help="Write nothing: read the token files INPUT and check every token in them.")
@json_option
def tokens(
    *,
    inputs: tuple[Path, ...],
    out: Path | None,
    tokenizer: str,
    end_token: str | None,
    threads: int,
    force: bool,
    check: bool,
    json_output: bool,
) -> None:
    """Convert text to a token file, which a job reads with `source = "tokens"`.

    INPUT: files, or folders of files. Each file is a document; in a .jsonl file each line is one, with its text in
    "text".
    """
    began_s = time.monotonic()
    if check:
        _refuse_with_check(out, end_token, force=force)
        found = [(path, _checked(path)) for path in inputs]
    else:
        found = [_written(inputs, _goal(out, force=force), tokenizer, end_token, threads)]
    _print_result(found, time.monotonic() - began_s, json_output=json_output)


def _refuse_with_check(out: Path | None, end_token: str | None, *, force: bool) -> None:
    if out is not None or end_token is not None or force:
        raise click.UsageError("--check writes nothing: leave out --out, --end-token and --force")


def _goal(out: Path | None, *, force: bool) -> Path:
    if out is None:
        raise click.UsageError("give the file to write with --out FILE")
    if out.exists() and not force:
        raise click.UsageError(f"{out} already exists: give another --out, or --force to replace it")
    return out


def _written(
    inputs: Sequence[Path], out: Path, tokenizer_name: str, end_token: str | None, threads: int
) -> tuple[Path, Header]:
    tokenizer = open_tokenizer(tokenizer_name, Path())
    end = None if end_token is None else _id_of(tokenizer, end_token)
    files = find_files(inputs)
    with _bar("tokenising", sum(file.size_bytes for file in files)) as progress:
        return out, tokenise(files, tokenizer, out, end_token=end, threads=threads, progress=progress)


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise click.UsageError(f"--end-token {token}: the byte tokenizer has none; give a tokenizer.json that has it")
    return tokenizer.id_of(token)


def _checked(path: Path) -> Header:
    header = read_header(path)
    with _bar("checking", header.tokens * header.token_bytes) as progress:
        verify(path, progress)
    return header


@contextmanager
def _bar(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error if it is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total_bytes)
        yield lambda done: progress.advance(task, done)


def _print_result(found: Sequence[tuple[Path, Header]], seconds: float, *, json_output: bool) -> None:
    if json_output:
        files = [
            {
                "path": str(path),
                "tokens": header.tokens,
                "documents": header.documents,
                "vocab": header.vocab,
                "token_bytes": header.token_bytes,
                "file_bytes": header.file_bytes,
                "digest": header.digest.hex(),
                "tokenizer": header.tokenizer.hex(),
            }
            for path, header in found
        ]
        print_json({"files": files, "seconds": round(seconds, 3)})
        return
    print_table(
        ("file", "tokens>", "documents>", "vocabulary>", "bytes/token>", "bytes>"),
        (
            (path, f"{h.tokens:,}", f"{h.documents:,}", f"{h.vocab:,}", h.token_bytes, f"{h.file_bytes:,}")
            for path, h in found
        ),
    )
