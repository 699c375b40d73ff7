from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from atoll.server.cli.run import run
from atoll.server.cli.show_round import BAR_COLUMNS, bar
from atoll.server.control.timeline import StepSpan

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    Invoke = Callable[..., Result]


def test_the_timeline_of_a_round_shows_bars_and_reasons(fake: Any, invoke: Invoke) -> None:
    shown = invoke(run, "show", "latest", "--round", "1")
    assert shown.exit_code == 0, shown.stderr
    assert "round 1, train, released" in shown.stdout
    assert "it had not reported when the round closed; it had not taken the task: too slow" in shown.stdout
    assert "too slow" in shown.stdout
    assert fake.control.asked[-1].round == 0


def test_as_json_it_is_the_run_with_that_round_alone(invoke: Invoke) -> None:
    found = json.loads(invoke(run, "show", "rabc", "--round", "1", "--json").stdout)
    assert [item["round"] for item in found["rounds"]] == [0]
    assert found["rounds"][0]["members"][0]["end_s"] == pytest.approx(3.0)


@pytest.mark.parametrize("label", ["0", "seven", "1.0", "-1", "1.9"])
def test_an_unknown_round_is_reported(invoke: Invoke, label: str) -> None:
    result = invoke(run, "show", "rabc", f"--round={label}")
    assert result.exit_code == 2
    assert label in result.stderr


def test_bars_are_as_long_as_their_time() -> None:
    whole = bar((StepSpan("wait", 0.0, 1.0), StepSpan("fit", 1.0, 4.0)), 4.0)
    assert whole.plain == "·" * (BAR_COLUMNS // 4) + "█" * (3 * BAR_COLUMNS // 4)
    assert len(bar((StepSpan("fit", 0.0, 1.0),), 8.0).plain) == BAR_COLUMNS // 8
    assert bar((), 0.0).plain == ""
