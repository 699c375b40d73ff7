"""The rounds of a run as a value, and what a notebook shows of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from atoll.operator import BadInputError, History, RoundSummary, RunDetail, RunSummary
from atoll.operator.history import Rounds
from atoll.operator.notebook import screen

RUN = RunSummary("rabc", "digits <b>", "running", "", 20, 2, 1.0, None, "")


def a_round(
    number: int, phase: str = "released", *, metrics: Mapping[str, float] = MappingProxyType({})
) -> RoundSummary:
    return RoundSummary(
        round=number,
        attempt=0,
        kind="train",
        phase=phase,
        reason="",
        cohort=4,
        reported=3,
        quorum=2,
        wanted=4,
        total_weight=30,
        opened_at=1.0,
        closed_at=2.5,
        remaining_s=None,
        metrics=metrics,
        version=number,
    )


ROUNDS = (
    a_round(0, metrics={"train/loss": 2.0, "server/accuracy": 0.25}),
    a_round(1, metrics={"train/loss": 1.0, "server/accuracy": 0.5}),
    a_round(2, "open"),
)


def history(rounds: tuple[RoundSummary, ...] = ROUNDS) -> History:
    return History(RunDetail(RUN, rounds, 4, "[job]"))


def test_metrics_curves_and_rows() -> None:
    found = history()
    assert found.metrics == ("accuracy", "loss")
    assert found.curve("loss") == ((1, 2.0), (2, 1.0))
    with pytest.raises(BadInputError, match="metric 'los'\nWhat to do: choose of accuracy, loss"):
        found.curve("los")
    assert len(found) == 3
    assert found.rows()[1] == {
        "round": 1,
        "attempt": 0,
        "kind": "train",
        "phase": "released",
        "cohort": 4,
        "reported": 3,
        "total_weight": 30,
        "duration_s": 1.5,
        "train/loss": 1.0,
        "server/accuracy": 0.5,
    }
    assert repr(found) == "<History of run rabc: running, 2/20 rounds released>"


def test_a_history_is_a_sequence_of_attempts() -> None:
    found = history()
    assert (found[0], found[-1], found[1:]) == (ROUNDS[0], ROUNDS[2], ROUNDS[1:])
    assert [item.round for item in found] == [0, 1, 2]
    assert found.metric("server/accuracy") == [0.25, 0.5]
    with pytest.raises(BadInputError, match="metric 'accuracy'\nWhat to do: choose of train/loss, server/accuracy"):
        found.metric("accuracy")


def test_before_anything_is_measured_every_metric_is_empty() -> None:
    found = history((a_round(0, "open"),))
    assert (found.metric("server/accuracy"), found.curve("accuracy")) == ([], ())


def test_the_rows_become_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pandas")
    module.__dict__["DataFrame"] = lambda rows: ("frame", rows)
    monkeypatch.setitem(sys.modules, "pandas", module)
    assert history().to_pandas() == ("frame", history().rows())


def test_a_plot_has_axes_for_each_metric() -> None:
    drawn = history().plot()
    assert [axes.get_title(loc="left") or axes.get_title() for axes in drawn.axes] == ["accuracy", "loss"]
    (line,) = drawn.axes[1].lines
    np.testing.assert_array_equal(line.get_xydata(), [(1, 2.0), (2, 1.0)])
    assert len(history().plot("loss").axes) == 1
    assert drawn._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # what a notebook shows


def test_a_metric_whose_name_is_no_formula_is_drawn() -> None:
    name = r"$\bad{$"
    drawn = history((a_round(0, metrics={name: 1.0}),)).plot()
    assert drawn._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # drawn when it is shown


def test_a_plot_of_what_was_not_measured_names_what_was() -> None:
    with pytest.raises(BadInputError, match=r"do not have metric 'f1'\n.*choose of accuracy, loss"):
        history().plot("f1")
    with pytest.raises(BadInputError, match="do not have any metric"):
        history(()).plot()


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "atoll.server.report.plots", raising=False)
    with pytest.raises(ImportError, match=r"a plot needs matplotlib\S*: .*server"):
        history().plot("loss")


@pytest.mark.parametrize("rounds", [(), ROUNDS, tuple(a_round(number) for number in range(30))])
def test_the_page_of_a_notebook_is_well_formed_and_escaped(rounds: tuple[RoundSummary, ...]) -> None:
    shown = history(rounds)._repr_html_()
    ET.fromstring(shown.replace("<br>", "<br/>"))  # noqa: S314  # our own page
    assert "digits &lt;b&gt;" in shown
    assert shown.count("<tr>") == 1 + min(10, len(rounds))
    assert ("earlier rounds" in shown) == (len(rounds) > 10)


def test_only_new_rounds_are_fetched_and_the_last_known_one_again() -> None:
    asked: list[int] = []

    def fetch(since: int) -> RunDetail:
        asked.append(since)
        return replace(history().detail, rounds=tuple(item for item in ROUNDS if item.round >= since))

    known = Rounds(fetch)
    assert known.refreshed().rounds == ROUNDS
    assert known.refreshed().rounds == ROUNDS
    assert asked == [0, 1]


def loaded_ipython(shell: object) -> ModuleType:
    module = ModuleType("IPython")
    module.__dict__["get_ipython"] = lambda: shell
    return module


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["script", "terminal"])
def test_without_a_notebook_each_round_is_a_line(
    shell: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded modules do not decide: a script that runs notebooks has ipykernel, IPython's terminal has a shell."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", loaded_ipython(shell))
    shown = screen()
    shown.show(history())
    shown.show(history())
    assert capsys.readouterr().out.splitlines() == [
        "round 1 released, 3 of 4 reported, train/loss 2, server/accuracy 0.25",
        "round 2 released, 3 of 4 reported, train/loss 1, server/accuracy 0.5",
    ]


def test_in_a_notebook_the_picture_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def display(value: object, *, display_id: bool) -> SimpleNamespace:
        assert display_id
        drawn.append(value)
        return SimpleNamespace(update=drawn.append)

    module = ModuleType("IPython.display")
    module.__dict__["display"] = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "IPython", loaded_ipython(SimpleNamespace(kernel=object())))
    shown = screen()
    shown.show(history())
    shown.show(history(ROUNDS[:1]))
    assert [len(item) for item in drawn] == [3, 1]
