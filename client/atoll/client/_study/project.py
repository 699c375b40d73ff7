"""The files of a study, as text and bytes; all of them are written to a folder, or none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll.client._study.frameworks import Framework
from atoll.client.errors import UsageError
from atoll.formats.arrays import save
from atoll.text.installing import install_line

MAX_NAME_CHARS = 50
"""A job's name has at most 64 characters, and that of the statistics is longer than the study's by 11."""
INITIAL = "initial.safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TEMPLATE = ".txt"


def name_of(folder: Path) -> str:
    """The name of the study in a folder, which is the folder's name.

    Raises:
        UsageError: if it is not a valid job name.
    """
    name = folder.resolve().name
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"{name!r} cannot be the name of a study: name the folder with 1 to {MAX_NAME_CHARS} letters, digits, "
            "dots, dashes or underscores, the first a letter or digit"
        )
    return name


def texts_of(name: str, framework: Framework) -> dict[str, str]:
    """The text files of a study, by their names."""
    filled = {
        "{{name}}": name,
        "{{lr}}": str(framework.lr),
        "{{rows}}": framework.rows,
        "{{install}}": install_line(framework.extras),
        "{{columns}}": "".join(f'    "{column}",\n' for column in framework.columns),
        "{{labels}}": ", ".join(f'"{label}"' for label in framework.labels),
    }
    found = {}
    for folder in (framework.name, "any"):
        for template in (files("atoll.client._study") / "templates" / folder).iterdir():
            text = template.read_text(encoding="utf-8")
            for key, value in filled.items():
                text = text.replace(key, value)
            found[template.name.removesuffix(_TEMPLATE)] = text
    return dict(sorted(found.items()))


def write_study(folder: Path, framework: Framework) -> list[Path]:
    """Write the files of a study to a folder, which is created if missing; return their paths.

    Raises:
        UsageError: if the folder's name is not a valid job name, it has one of the files already, or it cannot be
            written to. Nothing is written then.
    """
    texts = texts_of(name_of(folder), framework)
    names = [*texts, INITIAL]
    try:
        _require_room(folder, names)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="atoll-study-") as made:
            _fill(Path(made), texts, framework)
            _move(Path(made), folder, names)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}: choose another folder") from error
    return [folder / name for name in sorted(names)]


def _require_room(folder: Path, names: list[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose another name for the study's folder")
    if there := sorted(name for name in names if (folder / name).is_symlink() or (folder / name).exists()):
        raise UsageError(
            f"{folder} has {', '.join(there)} already, and files are never overwritten: choose another folder, or move "
            f"{'it' if len(there) == 1 else 'them'} away"
        )


def _fill(folder: Path, texts: Mapping[str, str], framework: Framework) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    save(folder / INITIAL, framework.initial())


def _move(made: Path, folder: Path, names: list[str]) -> None:
    """Copy the files to the folder; fails if a file of the same name has appeared meanwhile."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    done: list[Path] = []
    try:
        for name in names:
            with (folder / name).open("xb") as file:
                done.append(folder / name)
                file.write((made / name).read_bytes())
    except OSError:
        for path in done:
            path.unlink()
        if is_new:
            folder.rmdir()
        raise
