"""A round's database work does not grow with the run: the number of statements and the work of each stay equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from tests.server.runs.federation import Client, Federation, job, update_values

pytestmark = pytest.mark.slow

EARLY, LATE, ROUNDS = 10, 180, 20
"""First rounds of the two windows that are compared, and their length."""
STEPS = 10
MORE = 1.2
"""A window may cost so many times the other: trees of rows are deeper, and some work is done now and then."""


@dataclass
class Costs:
    """Statements by their text, and steps of SQLite's virtual machine in units of ``STEPS``."""

    statements: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def step(self) -> int:
        self.steps += 1
        return 0

    def taken(self) -> Costs:
        """The costs so far; restarts the count."""
        found = Costs(self.statements, self.steps)
        self.statements, self.steps = Counter(), 0
        return found


@contextmanager
def watched(*engines: Engine) -> Iterator[Costs]:
    """Count the work of these engines' databases."""
    costs = Costs()

    def begin(_: Connection, cursor: Any, statement: str, *_more: Any) -> None:
        costs.statements[statement] += 1
        cursor.connection.set_progress_handler(costs.step, STEPS)

    for engine in engines:
        event.listen(engine, "before_cursor_execute", begin)
    try:
        yield costs
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", begin)


async def play(alice: Client, rounds: int) -> None:
    for number in range(rounds):
        task = await alice.next("participate")
        await alice.report(task.key, update_values(number))


async def window(alice: Client, costs: Costs) -> Costs:
    costs.taken()
    await play(alice, ROUNDS)
    return costs.taken()


async def test_a_round_costs_the_database_the_same_however_long_the_run(federation: Federation) -> None:
    store = federation.store
    with watched(store.writer._engine, store.reader._engine) as costs:
        (alice,) = await federation.clients("alice")
        await federation.submit(job(rounds=1000))
        await play(alice, EARLY)
        early = await window(alice, costs)
        await play(alice, LATE - EARLY - ROUNDS)
        late = await window(alice, costs)
    assert early.steps > ROUNDS
    more = {text: (early.statements[text], count) for text, count in late.statements.items()}
    assert late.statements.total() <= MORE * early.statements.total(), more
    assert late.steps <= MORE * early.steps, more


async def test_a_query_that_looks_at_all_events_would_be_noticed(federation: Federation) -> None:
    """Checks the measure above on a query of the forbidden kind."""
    store = federation.store

    def scan(connection: Connection) -> None:
        connection.execute(text("SELECT count(*) FROM events WHERE body LIKE '%x%'")).one()

    with watched(store.reader._engine) as costs:
        (alice,) = await federation.clients("alice")
        await federation.submit(job(rounds=1000))
        found = []
        for _ in range(2):
            await play(alice, 40)
            costs.taken()
            await store.reader.run(scan)
            found.append(costs.taken().steps)
    assert found[1] > MORE * found[0] > 0
