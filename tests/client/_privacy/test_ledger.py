"""The ledger: charges come before use, are durable, and are never lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.client import BudgetSpentError, RoundKey, UsageError
from atoll.client._privacy import ledger as ledgers
from atoll.client._privacy.ledger import Ledger, Limit, Release, read_account
from atoll.client._privacy.sample_ledger import dp_sgd_release, sample_ledger
from tests.patience import WAIT_S

ROUND = RoundKey("r1", 0, 0)
STEPS = Release("steps", noise_multiplier=1.0, sample_rate=0.1, count=10)


def count(releases: Sequence[Release], _: float) -> float:
    """A tenth of epsilon for each release."""
    return sum(release.count for release in releases) / 10


def opened(folder: Path, epsilon: float = 3.0, unit: str = "sample") -> Ledger:
    return Ledger(folder / "privacy" / "samples.json", unit, Limit(epsilon, 1e-5), count)


def test_charges_add_up_over_rounds_runs_and_restarts(tmp_path: Path) -> None:
    opened(tmp_path).charge(ROUND, "digits", STEPS)
    opened(tmp_path).charge(RoundKey("r1", 1, 0), "digits", STEPS)
    opened(tmp_path).charge(RoundKey("r2", 0, 0), "faces", replace(STEPS, count=5))
    account = opened(tmp_path).account()
    assert account.epsilon == pytest.approx(2.5)
    assert account.rounds == 3
    assert [(entry.run, entry.release.count, entry.rounds) for entry in account.entries] == [
        ("r1", 20, 2),
        ("r2", 5, 1),
    ]


def test_entries_keep_the_order_of_their_first_charge(tmp_path: Path) -> None:
    """The first kind fixes the order of a filter: alternating runs must not change it at each charge."""
    ledger = sample_ledger(tmp_path / "samples.json", Limit(6.0, 1e-6), "rdp")
    kinds = [dp_sgd_release(0.7, 0.001, 100), dp_sgd_release(6.0, 0.3, 1)]
    spent = []
    for number in range(6):
        ledger.charge(RoundKey(f"r{number % 2}", number, 0), "digits", kinds[number % 2])
        spent.append(ledger.account().epsilon)
    assert [entry.run for entry in ledger.account().entries] == ["r0", "r1"]
    assert spent[1:] == sorted(spent[1:])


def test_the_same_round_again_is_charged_again(tmp_path: Path) -> None:
    """An update of the first training may have been sent: a second training is a new charge."""
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "digits", STEPS)
    ledger.charge(ROUND, "digits", STEPS)
    assert ledger.account().epsilon == pytest.approx(2.0)


def test_a_round_beyond_the_limit_is_not_charged(tmp_path: Path) -> None:
    ledger = opened(tmp_path, epsilon=2.0)
    ledger.charge(ROUND, "digits", STEPS)
    assert ledger.objection(STEPS) is None  # exactly the limit
    ledger.charge(ROUND, "digits", STEPS)
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetSpentError, match=r"2 of epsilon 2 \(delta 1e-05\) are spent on each sample.*make it 3"):
        ledger.charge(ROUND, "digits", STEPS)
    assert ledger.path.read_bytes() == before


def test_steps_that_were_not_made_are_taken_off(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "digits", STEPS)
    ledger.charge(ROUND, "digits", STEPS)
    ledger.settle(ROUND, STEPS, made=4)
    assert ledger.account().releases == (replace(STEPS, count=14),)
    ledger.settle(ROUND, STEPS, made=10)
    assert ledger.account().rounds == 2
    with pytest.raises(ValueError, match="11 releases were made of 10"):
        ledger.settle(ROUND, STEPS, made=11)


def test_a_ledger_without_a_file_has_spent_nothing(tmp_path: Path) -> None:
    assert opened(tmp_path).account().epsilon == 0.0
    assert opened(tmp_path).objection(STEPS) is None
    assert not (tmp_path / "privacy").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-20],
        lambda _: "[]",
        lambda _: "{}",
        lambda text: text.replace('"count": 10', '"count": -10'),
        lambda text: text.replace('"count": 10', '"count": "10"'),
        lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": NaN'),
        lambda text: text.replace('"run": "r1"', '"ran": "r1"'),
        lambda text: text.replace('"delta": 1e-05', '"delta": 2'),
    ],
)
def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path: Path, change: Callable[[str], str]) -> None:
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "digits", STEPS)
    text = ledger.path.read_text()
    ledger.path.write_text(change(text))
    assert ledger.path.read_text() != text
    for use in (lambda: ledger.objection(STEPS), lambda: ledger.charge(ROUND, "digits", STEPS), ledger.account):
        with pytest.raises(UsageError, match=r"samples\.json (is damaged|has version)|a limit of delta"):
            use()


def test_a_newer_file_is_left_to_newer_versions(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "digits", STEPS)
    ledger.path.write_text(json.dumps(json.loads(ledger.path.read_text()) | {"version": 2}))
    with pytest.raises(UsageError, match="has version 2, this is version 1"):
        ledger.account()


def test_units_are_not_mixed(tmp_path: Path) -> None:
    opened(tmp_path).charge(ROUND, "digits", STEPS)
    with pytest.raises(UsageError, match="a ledger of each sample, not of each participant"):
        opened(tmp_path, unit="participant").charge(ROUND, "digits", STEPS)


def test_where_nothing_can_be_recorded_nothing_is_spent(tmp_path: Path) -> None:
    (tmp_path / "privacy").write_text("a file in the way")
    with pytest.raises(UsageError, match="cannot"):
        opened(tmp_path).charge(ROUND, "digits", STEPS)


def test_old_runs_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_ENTRIES", 10)
    ledger = opened(tmp_path, epsilon=1000.0)
    for number in range(25):
        kind = replace(STEPS, noise_multiplier=1.0 + number % 2)
        ledger.charge(RoundKey(f"r{number}", 0, 0), f"run {number}", kind)
    account = ledger.account()
    assert account.epsilon == pytest.approx(25.0)
    assert account.rounds == 25
    assert len(account.entries) <= 10
    assert {entry.release.noise_multiplier for entry in account.entries if not entry.run} == {1.0, 2.0}


def test_the_file_is_private_and_says_what_status_shows(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.charge(ROUND, "digits", STEPS)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    account = read_account(ledger.path)
    assert account == ledger.account()
    assert read_account(tmp_path / "none.json") is None


def test_an_epsilon_without_end_can_be_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "x.json", "sample", Limit(float("inf"), 0.0), lambda *_: float("inf"))
    ledger.charge(ROUND, "digits", STEPS)
    account = read_account(ledger.path)
    assert account is not None
    assert account.epsilon == account.limit.epsilon == float("inf")
    json.loads(ledger.path.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (-1.0, 0.1), (float("nan"), 0.1), (1.0, 1.0), (1.0, -0.1)])
def test_limits_that_cannot_be(epsilon: float, delta: float) -> None:
    with pytest.raises(UsageError, match="a limit of"):
        Limit(epsilon, delta)


def test_two_that_share_a_ledger_never_overspend_together(tmp_path: Path) -> None:
    """Each has its own handle, as two processes do; the limit allows 30 of the 2 x 30 charges."""
    refused = []

    def charge(name: str) -> None:
        ledger = opened(tmp_path, epsilon=30.0)
        for number in range(30):
            try:
                ledger.charge(RoundKey(name, number, 0), name, STEPS)
            except BudgetSpentError:
                refused.append(name)

    threads = [threading.Thread(target=charge, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account = opened(tmp_path, epsilon=30.0).account()
    assert account.rounds == 30
    assert account.epsilon == pytest.approx(30.0)
    assert len(refused) == 30


KILLED = """
import os, signal, sys
from pathlib import Path
from atoll.client import RoundKey
from atoll.client._privacy import ledger as ledgers
from atoll.client._state import files

path, step = Path(sys.argv[1]), int(sys.argv[2])
left = [step]

def die(event, args):
    if event in ("open", "os.rename", "os.fsync", "fcntl.flock") or event.startswith("tempfile"):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

ledger = ledgers.Ledger(path, "sample", ledgers.Limit(100.0, 1e-5), lambda r, d: sum(x.count for x in r) / 10)
sys.addaudithook(die)
ledger.charge(RoundKey("r1", 0, 0), "digits", ledgers.Release("steps", noise_multiplier=1.0, count=10))
left[0] = 0
os.write(1, b"charged")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="kills itself")
def test_killed_at_every_step_of_a_charge(tmp_path: Path) -> None:
    """Before ``charge`` returns the file is the old one or the new one; after it, the charge is there."""
    path = tmp_path / "samples.json"
    ledger = Ledger(path, "sample", Limit(100.0, 1e-5), count)
    ledger.charge(ROUND, "digits", STEPS)
    killed = 0
    for step in range(1, 40):
        before = ledger.account().epsilon
        command = [sys.executable, "-c", KILLED, str(path), str(step)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_S)
        after = ledger.account().epsilon
        killed += done.returncode == -9
        assert done.returncode in (0, -9), done.stderr
        assert after == pytest.approx(before) or after == pytest.approx(before + 1)
        if done.stdout == b"charged":
            assert after == pytest.approx(before + 1)
            break
    assert 4 <= killed < 39
    ledger.charge(ROUND, "digits", STEPS)  # no lock is left behind
