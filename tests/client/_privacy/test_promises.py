"""Promises of all runs: recorded before training, summed, never removed; reaching the limit ends participation."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.client import BudgetSpentError, RoundKey, Task, TaskKind, UsageError
from atoll.client._privacy import promises as kept
from atoll.client._privacy.promises import Promises, path_of, read_promises
from atoll.client._session.protection import Protection
from atoll.client._state import records
from atoll.client.privacy_demand import Total
from atoll.client.testing import make_task
from tests.patience import WAIT_S
from tests.wire.test_privacy_terms import TERMS

UNREADABLE = "privacy: the record of promises to this participant cannot be read; its log says why"


def task(run: str, epsilon: float, delta: float = 1e-6, population: str = "clinic", number: int = 0) -> Task:
    terms = replace(TERMS, epsilon=epsilon, delta=delta, population=population)
    return make_task(key=RoundKey(run, number, 0), run_name=f"name of {run}", privacy=terms)


def opened(folder: Path, epsilon: float = math.inf, delta: float = math.inf, server: str = "s1") -> Promises:
    return Promises(path_of(folder), server, Total(epsilon, delta))


def spent(folder: Path) -> Total:
    record = read_promises(path_of(folder))
    assert record is not None
    return record.total


def test_runs_add_up_over_restarts_and_populations_until_the_limit(tmp_path: Path) -> None:
    """Each of three runs is below max_epsilon = 8; the fourth exceeds the limit on their sum."""
    for run, epsilon in (("r1", 6.5), ("r2", 0.25), ("r3", 0.25)):
        assert opened(tmp_path, 7.1).objection(task(run, epsilon)) is None
        opened(tmp_path, 7.1).keep(task(run, epsilon))
    expected = (
        "privacy: 3 runs promised epsilon 7 together, with this one it would be 7.25, "
        "at most 7.1 allowed (max_total_epsilon)"
    )
    assert opened(tmp_path, 7.1).objection(task("r4", 0.25)) == expected
    assert opened(tmp_path, 7.1).objection(task("r4", 0.25, population="another name")) == expected
    before = path_of(tmp_path).read_bytes()
    with pytest.raises(BudgetSpentError, match=r"it would be 7\.25"):
        opened(tmp_path, 7.1).keep(task("r4", 0.25))
    assert path_of(tmp_path).read_bytes() == before
    assert opened(tmp_path, 7.26).objection(task("r4", 0.25)) is None


def test_a_run_counts_once_and_with_the_largest_that_it_ever_promised(tmp_path: Path) -> None:
    for number, (epsilon, delta) in enumerate(((2.0, 1e-6), (2.0, 1e-6), (1.0, 1e-5), (3.0, 1e-7), (2.5, 1e-7))):
        opened(tmp_path, 3.0).keep(task("r1", epsilon, delta, number=number))
    assert spent(tmp_path) == Total(3.0, 1e-5)
    assert "it would be 3.5" in (opened(tmp_path, 3.0).objection(task("r1", 3.5)) or "")


def test_another_round_of_a_run_writes_nothing(tmp_path: Path) -> None:
    opened(tmp_path).keep(task("r1", 2.0))
    before = path_of(tmp_path).stat().st_ino
    opened(tmp_path).keep(task("r1", 2.0, number=1))
    assert path_of(tmp_path).stat().st_ino == before


def test_the_same_id_at_another_server_is_another_run(tmp_path: Path) -> None:
    opened(tmp_path).keep(task("r1", 2.0))
    opened(tmp_path, server="s2").keep(task("r1", 2.0))
    assert spent(tmp_path).epsilon == 4.0


def test_deltas_add_up_too(tmp_path: Path) -> None:
    opened(tmp_path).keep(task("r1", 1.0, 1e-5))
    assert opened(tmp_path, delta=2e-5).objection(task("r2", 1.0, 1e-5)) is None
    assert opened(tmp_path, delta=1.9e-5).objection(task("r2", 1.0, 1e-5)) == (
        "privacy: 1 run promised delta 1e-05 together, with this one it would be 2e-05, "
        "at most 1.9e-05 allowed (max_total_delta)"
    )


def test_limits_hold_in_decimal_as_they_are_set(tmp_path: Path) -> None:
    """In binary 0.1 + 0.1 + 0.1 is more than 0.3."""
    for run in ("r1", "r2", "r3"):
        opened(tmp_path, 0.3, 3e-5).keep(task(run, 0.1, 1e-5))
    assert spent(tmp_path) == Total(0.3, 3e-5)
    assert "would be 0.3001" in (opened(tmp_path, 0.3, 3e-5).objection(task("r4", 1e-9)) or "")


def test_an_epsilon_without_end(tmp_path: Path) -> None:
    assert "would be unbounded" in (opened(tmp_path, 8.0).objection(task("r1", math.inf)) or "")
    opened(tmp_path).keep(task("r1", math.inf))
    assert spent(tmp_path).epsilon == math.inf
    assert "promised epsilon unbounded together" in (opened(tmp_path, 8.0).objection(task("r2", 0.1)) or "")


def test_what_is_not_trained_or_not_promised_is_not_counted(tmp_path: Path) -> None:
    opened(tmp_path, 1.0).keep(make_task())
    assert opened(tmp_path, 1.0).objection(make_task()) is None
    evaluation = replace(task("r1", 9.0), kind=TaskKind.EVALUATE)
    assert Protection(opened(tmp_path, 1.0)).objection(evaluation) is None
    assert not path_of(tmp_path).exists()


def test_many_runs_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_ENTRIES", 16)
    for number in range(40):
        opened(tmp_path).keep(task(f"r{number}", 0.25, population="clinic" if number < 20 else f"p{number}"))
    record = read_promises(path_of(tmp_path))
    assert record is not None
    assert (record.total.epsilon, record.runs) == (10.0, 40)
    assert len(record.promises) <= 16
    names = [(one.run_name, one.population) for one in record.promises]
    assert names[0] == (kept.EARLIER, "")
    assert names[-1] == ("name of r39", "p39")


def changed(**fields: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        document = json.loads(text)
        document["promises"][0] |= fields
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda _: "", "is damaged"),
        (lambda text: text[:-20], "is damaged"),
        (lambda _: "[]", "is damaged"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "has version 2, this is version 1"),
        (changed(epsilon=-1.0), "is damaged"),
        (changed(epsilon=math.nan), "is damaged"),
        (changed(delta="much"), "is damaged"),
        (changed(runs=0), "is damaged"),
    ],
)
def test_a_damaged_record_declines_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[str], str], why: str
) -> None:
    opened(tmp_path).keep(task("r1", 2.0))
    path = path_of(tmp_path)
    path.write_text(damage(path.read_text()))
    before = path.read_text()
    protection = Protection(opened(tmp_path))
    assert protection.objection(task("r2", 0.1)) == UNREADABLE
    assert why in caplog.text
    assert str(path) in caplog.text
    with pytest.raises(UsageError, match=why):
        protection.charge(task("r2", 0.1))
    assert path.read_text() == before


def test_what_cannot_be_noted_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "replace_file", full)
    with pytest.raises(UsageError, match="No space left on device; no run is joined without a record of its promise"):
        Protection(opened(tmp_path)).charge(task("r1", 1.0))


SPENDER = """
import sys
from pathlib import Path
from atoll.client import BudgetSpentError
from tests.client._privacy.test_promises import opened, task
kept = 0
for number in range(40):
    try:
        opened(Path(sys.argv[1]), 5.0).keep(task(f"{sys.argv[2]}-{number}", 0.25))
        kept += 1
    except BudgetSpentError:
        pass
print(kept)
"""


def test_two_processes_never_join_more_than_the_limit_allows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SPENDER, str(tmp_path)]
    both = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    counts = [int(process.communicate(timeout=WAIT_S)[0]) for process in both]
    assert sum(counts) == 20
    assert spent(tmp_path).epsilon == 5.0
