"""A figure's printed formula is what was computed."""

from __future__ import annotations

import pytest
from hypothesis import given as sampled
from hypothesis import strategies as st

from atoll.datacenter.sizing.formula import Figure, explain, given, largest, readable, smallest, total

NUMBERS = st.integers(1, 50).map(float)


def figures() -> st.SearchStrategy[Figure]:
    """Any arithmetic on inputs."""
    inputs = NUMBERS.map(lambda value: given("input", value))

    def grown(inner: st.SearchStrategy[Figure]) -> st.SearchStrategy[Figure]:
        pairs = st.tuples(inner, inner, st.sampled_from("+-*/"))
        return pairs.map(lambda pair: _applied(*pair))

    return st.recursive(inputs, grown, max_leaves=8)


def _applied(left: Figure, right: Figure, operation: str) -> Figure:
    match operation:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    return left / right if right.value else left


@sampled(figures())
def test_brackets_keep_the_meaning(figure: Figure) -> None:
    """The formula in numbers, read with the usual precedence, gives the value."""
    assert _read(figure.in_numbers()) == pytest.approx(figure.value, rel=1e-9, abs=1e-9)


def _read(text: str) -> float:
    """A reader of sums of products, written against the usual grammar."""
    value, rest = _sum(text.replace(" ", ""))
    assert rest == ""
    return value


def _sum(text: str) -> tuple[float, str]:
    value, rest = _product(text)
    while rest[:1] in {"+", "-"}:
        sign = 1 if rest[0] == "+" else -1
        other, rest = _product(rest[1:])
        value += sign * other
    return value, rest


def _product(text: str) -> tuple[float, str]:
    value, rest = _atom(text)
    while rest[:1] in {"*", "/"}:
        times = rest[0] == "*"
        other, rest = _atom(rest[1:])
        value = value * other if times else value / other
    return value, rest


def _atom(text: str) -> tuple[float, str]:
    if text[0] == "(":
        value, rest = _sum(text[1:])
        assert rest[0] == ")"
        return value, rest[1:]
    end = next((place for place, sign in enumerate(text) if sign not in "0123456789."), len(text))
    return float(text[:end]), text[end:]


def test_lines_lead_from_a_result_to_its_inputs_each_once() -> None:
    dim, heads = given("dim", 64), given("heads", 4)
    head = (dim / heads).called("head_dim")
    matrix = (dim * head * (heads + heads)).called("matrix", "elements", "a paper")
    assert list(explain((4 * matrix).called("memory", "bytes"))) == [
        "memory = 4 * matrix = 4 * 8192 = 32 KiB",
        "matrix = dim * head_dim * (heads + heads) = 64 * 16 * (4 + 4) = 8.192 k elements  [a paper]",
        "dim = 64",
        "head_dim = dim / heads = 64 / 4 = 16",
        "heads = 4",
    ]


def test_largest_smallest_and_sums() -> None:
    a, b = given("a", 3.0), given("b", 2.0)
    assert largest(a, b).formula() == "max(a, b)"
    assert smallest(a, b, 1.0).value == 1
    assert total([a, Figure(0.0), b]).formula() == "a + b"
    assert total([]).value == 0
    assert (10 - a).value == 7
    assert (6 / a).value == 2


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1536, "bytes", "1.5 KiB"),
        (0.25, "s", "250 ms"),
        (2e-6, "s", "2 us"),
        (12.5, "s", "12.5 s"),
        (7e9, "FLOP", "7 G FLOP"),
        (0.123456, "", "0.1235"),
    ],
)
def test_values_are_readable(value: float, unit: str, text: str) -> None:
    assert readable(given("x", value, unit)) == text
