"""Import the participant that a user names, ``MODULE:CLASS``, with the current directory on the import path.

``MODULE`` is a module's name (``my_trainer``, ``my_package.trainer``) or the path of a file (``trainers/mine.py``),
whose directory is then on the import path too.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from atoll.client._telemetry.users_errors import users_frame
from atoll.client.cli.arguments import values_of
from atoll.client.errors import ClientError, UsageError
from atoll.client.participant import Participant

_PACKAGES = {
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
}
"""PyPI names of packages that differ from their module's name."""
log = logging.getLogger("atoll.client")


def locate(name: str) -> object:
    """The object that ``module:attribute`` or ``path/to/file.py:attribute`` names.

    Raises:
        UsageError: if the name is malformed, or the module or attribute is missing or fails to import.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{name!r}: expected MODULE:NAME, as in my_trainer:Digits for class Digits in my_trainer.py")
    _add_to_path(Path.cwd())
    found: object = _import_file(Path(module_name)) if module_name.endswith(".py") else _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            choices = _choices(found)
            raise UsageError(
                f"{module_name} has no {attribute}; its classes and functions are {', '.join(choices) or 'none'}"
                f"{_meant(attribute, choices)}"
            )
        found = getattr(found, part)
    return found


def make_participant(name: str, arguments: Mapping[str, str]) -> Participant:
    """The participant that ``name`` refers to: a subclass of Participant, a function that makes one, or an instance.

    Arguments are texts, converted by the parameters' annotations (see ``arguments.values_of``).

    Raises:
        UsageError: if it is none of these, has neither ``fit`` nor ``table``, cannot be constructed, or the arguments
            do not match its parameters.
    """
    found = locate(name)
    if isinstance(found, Participant):
        if arguments:
            raise UsageError(f"{name} is a participant already and takes no arguments ({', '.join(arguments)})")
        return _with_work(name, found)
    made = None
    if (inspect.isclass(found) and issubclass(found, Participant)) or inspect.isroutine(found):
        made = _made(name, found, arguments)
    if not isinstance(made, Participant):
        raise UsageError(f"{name} is {_describe(found)}; a subclass of atoll.client.Participant is needed")
    return _with_work(name, made)


def _with_work(name: str, made: Participant) -> Participant:
    if not made.can_fit and not made.has_table:
        raise UsageError(
            f"{name} has no method fit(model, task), which trains on the participant's data and returns an Update, and "
            "no table(), which gives its rows for statistics"
        )
    return made


def _made(name: str, factory: Callable[..., object], arguments: Mapping[str, str]) -> object:
    values = values_of(name, factory, arguments)
    try:
        return factory(**values)
    except ClientError:
        raise
    except Exception as error:
        log.debug("%s cannot be made", name, exc_info=error)
        where = users_frame(error)
        raise UsageError(
            f"{name} cannot be made: {type(error).__name__}: {error}\n"
            f"  {where.filename}, line {where.lineno}, in {where.name}: {where.line}\n"
            "  --log-level debug shows the whole traceback"
        ) from error


def _meant(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, as the end of a sentence; empty if there is none."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _choices(of: object) -> list[str]:
    """The public classes and functions that a module, or a class, defines itself."""
    module = getattr(of, "__module__", getattr(of, "__name__", ""))
    return [
        key
        for key, value in vars(of).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
        and not key.startswith("_")
    ]


def _add_to_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _import_file(path: Path) -> object:
    if not path.is_file():
        raise UsageError(f"no file {path} in {Path.cwd()}{_meant(str(path), map(str, Path().glob('*.py')))}")
    _add_to_path(path.resolve().parent)
    return _import(path.stem)


def _import(module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"no module {module_name!r} in {Path.cwd()} or among the installed packages") from None
        package = _PACKAGES.get((error.name or "").partition(".")[0])
        install = f"pip install {package}" if package else "install it, or correct the name"
        raise UsageError(f"module {module_name!r} needs {error.name!r}, which is not installed: {install}") from error
    except Exception as error:
        raise UsageError(f"module {module_name!r} fails to import: {type(error).__name__}: {error}") from error


def _describe(found: object) -> str:
    return f"the class {found.__name__}" if inspect.isclass(found) else f"of type {type(found).__name__}"
