"""Numbers with their formulas: arithmetic on ``Figure`` keeps the formula beside the value.

A figure is made by ``given`` (an input) or by arithmetic on figures; ``called`` names a result. The printed formula is
therefore what was computed. Figures are immutable, so one figure may be part of many formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}
_CALLS = {"max", "min"}
_SMALL = 1e-3

_Leaf = Callable[["Figure"], str]


class Figure:
    """A number and its origin.

    Attributes:
        value: the number.
        name: name in formulas; empty for an intermediate result.
        unit: unit of the value, e.g. ``bytes``; empty for a plain number.
        source: paper and section, data sheet or measurement, if there is one.
        operation: ``+ - * /``, ``max`` or ``min``; empty for an input.
        operands: operands of the operation.
    """

    __slots__ = ("name", "operands", "operation", "source", "unit", "value")

    def __init__(
        self,
        value: float,
        operation: str = "",
        operands: tuple[Figure, ...] = (),
        *,
        name: str = "",
        unit: str = "",
        source: str = "",
    ) -> None:
        self.value = value
        self.operation = operation
        self.operands = operands
        self.name = name
        self.unit = unit
        self.source = source

    def called(self, name: str, unit: str = "", source: str = "") -> Figure:
        """Name a figure; one that already has a name becomes an operand of the new one."""
        if self.name:
            return Figure(self.value, "", (self,), name=name, unit=unit, source=source)
        return Figure(self.value, self.operation, self.operands, name=name, unit=unit, source=source)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __add__(self, other: Figure | float) -> Figure:
        right = _figure(other)
        return Figure(self.value + right.value, "+", (self, right))

    def __radd__(self, other: float) -> Figure:
        return _figure(other) + self

    def __sub__(self, other: Figure | float) -> Figure:
        right = _figure(other)
        return Figure(self.value - right.value, "-", (self, right))

    def __rsub__(self, other: float) -> Figure:
        return _figure(other) - self

    def __mul__(self, other: Figure | float) -> Figure:
        right = _figure(other)
        return Figure(self.value * right.value, "*", (self, right))

    def __rmul__(self, other: float) -> Figure:
        return _figure(other) * self

    def __truediv__(self, other: Figure | float) -> Figure:
        right = _figure(other)
        return Figure(self.value / right.value, "/", (self, right))

    def __rtruediv__(self, other: float) -> Figure:
        return _figure(other) / self

    def __repr__(self) -> str:
        return f"Figure({self.name or self.formula()} = {readable(self)})"

    def formula(self) -> str:
        """Return the formula in the names of its operands."""
        return _written(self, lambda figure: figure.name or _number(figure.value), outermost=True)

    def in_numbers(self) -> str:
        """Return the formula in numbers."""
        return _written(self, lambda figure: _number(figure.value), outermost=True)


@lru_cache(maxsize=8192, typed=True)
def given(name: str, value: float, unit: str = "", source: str = "") -> Figure:
    """Make an input: a number that is not computed from others."""
    return Figure(value, name=name, unit=unit, source=source)


def total(figures: list[Figure]) -> Figure:
    """Return the sum; 0 for an empty list."""
    kept = [figure for figure in figures if figure.value]
    if not kept:
        return Figure(0.0)
    result = kept[0]
    for figure in kept[1:]:
        result = result + figure
    return result


def largest(*figures: Figure | float) -> Figure:
    """Return the largest."""
    operands = tuple(_figure(figure) for figure in figures)
    return Figure(max(figure.value for figure in operands), "max", operands)


def smallest(*figures: Figure | float) -> Figure:
    """Return the smallest."""
    operands = tuple(_figure(figure) for figure in figures)
    return Figure(min(figure.value for figure in operands), "min", operands)


def explain(figure: Figure) -> Iterator[str]:
    """Yield lines from the figure down to its inputs: each named figure once, followed by its operands."""
    seen: set[int] = set()
    waiting = [figure]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield _line(current)
        waiting.extend(_named_inputs(current))


def readable(figure: Figure) -> str:
    """Format the value with its unit, bytes in binary units and seconds in decimal ones."""
    value, unit = figure.value, figure.unit
    if unit == "bytes":
        return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if unit == "s":
        return f"{value * 1e6:.3g} us" if value < _SMALL else f"{value * 1e3:.4g} ms" if value < 1 else f"{value:.4g} s"
    if unit:
        return _scaled(value, 1000.0, ("", "k", "M", "G", "T", "P", "E", "Z")).rstrip() + f" {unit}"
    return _number(value)


def _figure(value: Figure | float) -> Figure:
    return value if isinstance(value, Figure) else Figure(value)


def _named_inputs(figure: Figure) -> Iterator[Figure]:
    """Yield the nearest named figures below, through intermediate results."""
    for operand in figure.operands:
        if operand.name:
            yield operand
        else:
            yield from _named_inputs(operand)


def _line(figure: Figure) -> str:
    said = f"{figure.name or 'result'} = "
    if figure.operands:
        said += f"{figure.formula()} = "
        if figure.operation:
            said += f"{figure.in_numbers()} = "
    said += readable(figure)
    return f"{said}  [{figure.source}]" if figure.source else said


def _written(figure: Figure, leaf: _Leaf, *, outermost: bool = False) -> str:
    if not figure.operands or (figure.name and not outermost):
        return leaf(figure)
    if figure.operation in _CALLS or not figure.operation:
        inside = ", ".join(_written(operand, leaf) for operand in figure.operands)
        return f"{figure.operation}({inside})" if figure.operation else inside
    left, right = figure.operands
    return f"{_side(left, figure, leaf)} {figure.operation} {_side(right, figure, leaf, right=True)}"


def _side(operand: Figure, within: Figure, leaf: _Leaf, *, right: bool = False) -> str:
    """Write an operand, in brackets if the formula would otherwise have another meaning."""
    text = _written(operand, leaf)
    if operand.name or operand.operation not in _BINDING:
        return text
    inner, outer = _BINDING[operand.operation], _BINDING[within.operation]
    tight = inner > outer or (inner == outer and (not right or within.operation == "+" or _product(operand, within)))
    return text if tight else f"({text})"


def _product(operand: Figure, within: Figure) -> bool:
    return within.operation == "*" and operand.operation == "*"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value)}"
    return f"{value:.4g}"


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{value:.4g} {units[step]}"
