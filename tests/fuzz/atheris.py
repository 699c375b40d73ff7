"""Coverage-guided fuzzing of one format: ``python -m tests.fuzz.atheris "layout" --seconds 60``.

Needs ``pip install atheris`` (libFuzzer for Python; there are wheels for Linux only). Its inputs go through the
same checks as in ``test_formats.py``: any error but a format's own ends the run. Bytes that cause such an error, or
make the process grow or hang, are written to the folder that ``--findings`` names.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

GROWTH_MB = 64
ONE_TRY_S = 10
MAX_BYTES = 4096


def main(arguments: Sequence[str]) -> int:
    """Fuzz one format, or name them all; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.atheris", description=__doc__)
    parser.add_argument("format", nargs="?", help="its name; without one, the names are listed")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    engine()
    with tempfile.TemporaryDirectory(prefix="atoll-fuzz-") as folder:
        child = os.fork()  # libFuzzer ends its process without cleaning up
        if not child:
            os._exit(fuzz(options, Path(folder)))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fuzz(options: argparse.Namespace, folder: Path) -> int:
    """Returns only if the format is not known."""
    atheris = engine()
    with atheris.instrument_imports(include=["atoll"], enable_loader_override=False):
        formats = importlib.import_module("tests.fuzz.formats")
    found = formats.all_formats(folder)
    if options.format not in found:
        sys.stderr.write(f"formats: {', '.join(found)}\n")
        return 2
    logging.disable()
    kind = found[options.format]
    kind.try_(kind.valid)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "valid").write_bytes(kind.valid)
    atheris.Setup(libfuzzer_options(options, corpus), kind.try_)
    atheris.Fuzz()
    return 0


def engine() -> Any:
    """The module, which has no types of its own.

    Raises:
        SystemExit: if it is not installed; says how to.
    """
    try:
        return importlib.import_module("atheris")
    except ModuleNotFoundError:
        raise SystemExit(
            "atheris is not installed: pip install atheris (Linux); without it, `ATOLL_FUZZ_EXAMPLES=2000 pytest "
            "tests/fuzz` tries the same formats unguided"
        ) from None


def libfuzzer_options(options: argparse.Namespace, corpus: Path) -> list[str]:
    """The command line of libFuzzer; memory is limited to what is in use now and ``GROWTH_MB`` more."""
    in_use_mb = psutil.Process().memory_info().rss >> 20
    return [
        "atheris",
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-rss_limit_mb={in_use_mb + GROWTH_MB}",
        f"-timeout={ONE_TRY_S}",
        f"-max_len={MAX_BYTES}",
        f"-artifact_prefix={options.findings}{os.sep}",
        "-print_final_stats=1",
        str(corpus),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
