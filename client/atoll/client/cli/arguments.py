"""``--arg NAME=VALUE``: convert text from the command line to the annotated types of a participant's constructor."""

from __future__ import annotations

import contextlib
import inspect
import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from atoll.client.errors import UsageError

_FLAGS = {"true": True, "false": False}
_WANTED: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a JSON list",
    tuple: "a JSON list",
    dict: "a JSON object",
    type(None): "null",
}


def values_of(name: str, factory: Callable[..., object], arguments: Mapping[str, str]) -> dict[str, object]:
    """The arguments of ``factory``, converted by its annotations; ``name`` is its name for messages.

    ``str``, ``int``, ``float``, ``bool``, ``pathlib.Path``, lists, tuples, dicts, literals, None and unions of them are
    supported. With any other annotation, or none, a text that is valid JSON is parsed as JSON.

    Raises:
        UsageError: for a value of another type, or arguments that do not match the parameters.
    """
    signature = _signature(factory)
    values = {key: _value(key, text, signature.parameters.get(key)) for key, text in arguments.items()}
    try:
        signature.bind(**values)
    except TypeError as error:
        raise UsageError(f"{name}{signature}: {error}; give arguments as --arg NAME=VALUE") from None
    return values


def _signature(factory: Callable[..., object]) -> inspect.Signature:
    """The signature with annotations as types; as text if a name in them is only imported for type checkers."""
    try:
        return inspect.signature(factory, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):
        return inspect.signature(factory)


def _value(key: str, text: str, parameter: inspect.Parameter | None) -> object:
    annotation = Any if parameter is None or parameter.annotation is inspect.Parameter.empty else parameter.annotation
    try:
        return parsed(text, annotation)
    except ValueError:
        shown = inspect.formatannotation(annotation)
        raise UsageError(f"--arg {key}={text}: {text!r} is not {wanted(annotation)} ({key}: {shown})") from None


def parsed(text: str, annotation: object) -> object:
    """Convert a text to an annotation's type.

    Raises:
        ValueError: if it is none.
    """
    kind = get_origin(annotation) or annotation
    if kind in (Union, types.UnionType):
        return _first_that_fits(text, get_args(annotation))
    if kind is Literal:
        return _choice(text, get_args(annotation))
    if kind in (list, tuple, dict):
        return _container(text, kind)
    return _PARSERS.get(kind, _json)(text)


def _first_that_fits(text: str, annotations: tuple[object, ...]) -> object:
    """The value for the first annotation that accepts the text; ``str`` accepts any text, so it is tried last."""
    for annotation in sorted(annotations, key=lambda one: one is str):
        with contextlib.suppress(ValueError):
            return parsed(text, annotation)
    raise ValueError(text)


def _choice(text: str, choices: tuple[object, ...]) -> object:
    for one in choices:
        if str(one) == text or (isinstance(one, bool | None) and one is _json(text)):
            return one
    raise ValueError(text)


def _container(text: str, kind: object) -> object:
    match _json(text):
        case dict(found) if kind is dict:
            return found
        case list(found) if kind is not dict:
            return tuple(found) if kind is tuple else found
        case _:
            raise ValueError(text)


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text]


def _none(text: str) -> None:
    if text != "null":
        raise ValueError(text)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


_PARSERS: Mapping[object, Callable[[str], object]] = {
    str: str,
    Path: Path,
    int: int,
    float: float,
    bool: _flag,
    type(None): _none,
    "str": str,  # annotations that could not be evaluated
    "int": int,
    "float": float,
    "bool": _flag,
}


def wanted(annotation: object) -> str:
    """Describe the values that an annotation accepts."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(wanted(one) for one in get_args(annotation))
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    return _WANTED.get(get_origin(annotation) or annotation, inspect.formatannotation(annotation))
