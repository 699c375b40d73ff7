"""Numbers on the command line: no option of any command takes one that is not finite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner
from click.types import FloatParamType

from atoll.client.cli.app import GROUP
from atoll.settings.numbers import Finite


@dataclass(frozen=True)
class Place:
    """A parameter of a command, by the way to it."""

    words: tuple[str, ...]
    command: click.Command
    parameter: click.Parameter

    def __str__(self) -> str:
        return f"atoll {' '.join(self.words)} {self.parameter.opts[0]}"


def places(words: tuple[str, ...], command: click.Command) -> Iterator[Place]:
    """Every parameter of a command and of all below it."""
    for parameter in command.params:
        yield Place(words, command, parameter)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from places((*words, name), below)


EVERY = [place for point in entry_points(group=GROUP) for place in places((point.name,), point.load())]
NUMBERS = [place for place in EVERY if isinstance(place.parameter.type, FloatParamType)]


def test_there_are_commands_with_numbers() -> None:
    found = {str(place) for place in NUMBERS}
    assert {"atoll privacy plan --epsilon", "atoll privacy audit --rate", "atoll server start --silence-s"} <= found
    assert any(name.startswith("atoll silo ") for name in found)


@pytest.mark.parametrize("place", NUMBERS, ids=str)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-nan"])
def test_what_is_not_finite_is_refused(place: Place, value: str) -> None:
    assert isinstance(place.parameter.type, Finite), "use atoll.settings.numbers.Finite"
    result = CliRunner().invoke(place.command, [f"{place.parameter.opts[0]}={value}"])
    assert result.exit_code == 2
    assert f"'{place.parameter.opts[0]}': {value} is not a finite number." in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("value", "expected"), [("0.5", None), ("1", None), ("0", "0.0 is not in the range"), ("x", "is not a valid float")]
)
def test_bounds_are_clicks_own(value: str, expected: str | None) -> None:
    if expected is None:
        assert Finite(0, 1, min_open=True).convert(value, None, None) == float(value)
        return
    with pytest.raises(click.BadParameter, match=expected):
        Finite(0, 1, min_open=True).convert(value, None, None)
