"""The default project for calls, by server; kept in a file of this account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from atoll.operator.errors import BadInputError
from atoll.operator.sign_in import config_folder, locked
from atoll.server.identity.files import PRIVATE_MODE, write_atomic

PROJECTS_FILE = "projects.json"


def chosen_project(address: str) -> str:
    """The project chosen for the server at ``address``; empty if there is none.

    Raises:
        BadInputError: if the file cannot be read.
    """
    return _read(_path()).get(address, "")


def choose_project(address: str, project: str) -> None:
    """Choose a project for the server at ``address``; an empty name removes the choice.

    Raises:
        BadInputError: if the file cannot be read or written.
    """
    path = _path()
    with locked(path):
        chosen = {one: name for one, name in _read(path).items() if one != address}
        if project:
            chosen[address] = project
        try:
            write_atomic(path, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode(), mode=PRIVATE_MODE)
        except OSError as error:
            raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error


def _path() -> Path:
    return config_folder() / PROJECTS_FILE


def _read(path: Path) -> Mapping[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(
            f"{path} cannot be read: {error}", "remove it, and choose again: atoll project use"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise BadInputError(f"{path} contains no projects by server", "remove it, and choose again: atoll project use")
    return found
