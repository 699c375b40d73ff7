"""A model with its card as a folder that Hugging Face, MLflow and people can read."""

from __future__ import annotations

import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.formats import safetensors
from atoll.operator.errors import BadInputError
from atoll.operator.exports.card import card
from atoll.operator.exports.markup import quoted
from atoll.operator.table_files import write_csv
from atoll.operator.tables import PHASES_S, Table, round_table

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.operator.exports.card import ExportedModel
    from atoll.operator.tables import Dtype

_LOADER = "atoll_tensors"
_NAMES_PARTICIPANTS = frozenset({"reason"})
"""Columns of the rounds whose text may name participants, which must not be published with the model."""
_OF_DATA = frozenset({"total_weight"})
"""Columns that depend on participants' data, which a private run protects."""
_OF_DRAWS = frozenset({"cohort", "reported", "quorum", "wanted", "created_at", "opened_at", "closed_at", "duration_s"})
"""Columns that depend on who was drawn, if the draw is secret (docs/privacy/accounting.md)."""


def export_folder(model: ExportedModel, chunks: Iterable[Buffer], folder: Path) -> None:
    """Write the folder atomically.

    Args:
        model: the model's run and round.
        chunks: the bytes of the model.
        folder: does not exist yet, or is empty.

    Raises:
        BadInputError: if the folder has something in it, or cannot be written.
    """
    require_free(folder)
    with _replacing(folder) as made:
        safetensors.write(made / "model.safetensors", model.layout, chunks, {"format": "pt"})
        (made / "README.md").write_text(card(model), encoding="utf-8")
        (made / "job.toml").write_text(model.detail.job_toml, encoding="utf-8")
        write_csv(_public(model), made / "history.csv")
        if model.findings is not None:
            model.findings.save(made / "statistics.json")
        _write_mlflow(model, made)


def require_free(folder: Path) -> None:
    """Refuse a folder that is not empty, before a model is fetched for it.

    Raises:
        BadInputError: if the folder is not empty, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(f"{folder} exists and is not an empty folder", "name another folder, or remove it first")


def _public(model: ExportedModel) -> Table:
    """The rounds, without columns that must not be published with the model."""
    withheld = _NAMES_PARTICIPANTS | (_OF_DATA if model.ledger is not None else frozenset())
    if model.secret_draws:
        withheld |= _OF_DRAWS | PHASES_S.keys()
    table = round_table(model.detail.rounds)
    kept = [at for at, name in enumerate(table.columns) if name not in withheld]
    columns: dict[str, Dtype] = {name: dtype for name, dtype in table.columns.items() if name not in withheld}
    return Table(columns, tuple(tuple(row[at] for at in kept) for row in table.rows))


def _write_mlflow(model: ExportedModel, made: Path) -> None:
    """The files from which MLflow loads the model: https://mlflow.org/docs/latest/ml/model/ ("Storage Format")."""
    (made / "code").mkdir()
    source = files("atoll.operator.exports").joinpath(f"{_LOADER}.py").read_text(encoding="utf-8")
    (made / "code" / f"{_LOADER}.py").write_text(source, encoding="utf-8")
    (made / "requirements.txt").write_text("numpy\n", encoding="utf-8")
    (made / "MLmodel").write_text("\n".join(_mlmodel(model)) + "\n", encoding="utf-8")


def _mlmodel(model: ExportedModel) -> Iterator[str]:
    yield "flavors:"
    yield "  python_function:"
    yield f"    loader_module: {_LOADER}"
    yield "    code: code"
    yield "    data: model.safetensors"
    yield f"    python_version: {platform.python_version()}"
    yield "metadata:"
    yield f"  atoll_run: {quoted(model.detail.run.run)}"
    yield f"  atoll_model: {quoted(model.blob)}"
    yield f"  atoll_round: {model.round}"


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``folder`` at the end; removed after an error.

    An existing empty folder is filled instead: it may be the working folder or a mount point, or have its own
    permissions.
    """
    fills = folder.exists()
    made = (folder if fills else folder.parent) / f".atoll-{secrets.token_hex(4)}"
    try:
        made.mkdir(parents=True)
        yield made
        if fills:
            for one in sorted(made.iterdir()):
                one.rename(folder / one.name)
        else:
            made.replace(folder)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
