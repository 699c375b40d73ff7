"""Invalid arguments are refused by name before a call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atoll.operator import BadInputError, Operator, Run

CALLS: dict[str, Callable[[Operator, Run], object]] = {
    "limit": lambda operator, _: operator.runs(-1),
    "count": lambda operator, _: operator.make_tokens(-1),
    "start": lambda operator, _: operator.charges("ward", start=-1),
    "only": lambda _, run: run.detail(only=-1),
    "since": lambda _, run: run.detail(since=-1),
    "which": lambda _, run: run.model(-1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_number_that_the_contract_cannot_carry_is_named(name: str) -> None:
    refused = pytest.raises(BadInputError, match=f"{name} = -1; allowed are whole numbers from 0 to 4294967295")
    with Operator.connect("127.0.0.1:1", insecure=True) as operator, refused:
        CALLS[name](operator, operator.run("raaaaaaaaaaaa"))


def test_the_number_of_charges_is_checked_too() -> None:
    refused = pytest.raises(BadInputError, match=f"limit = {2**32}; allowed")
    with Operator.connect("127.0.0.1:1", insecure=True) as operator, refused:
        operator.newest_charges(run="raaaaaaaaaaaa", limit=2**32)
