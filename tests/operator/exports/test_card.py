"""The model card: front matter that Hugging Face's library reads, and words that hostile text does not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from atoll.operator.exports.card import card
from atoll.operator.exports.markup import plain, quoted
from atoll.statistics import CategoryFindings, Findings, NumericFindings
from tests.operator.exports.samples import DETAIL, HOSTILE, LEDGER, POPULATION, hostile, model


def _data(text: str) -> Any:
    """The front matter, as Hugging Face's library reads it."""
    return ModelCard(text).data


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def test_hugging_faces_library_reads_the_results_of_this_model() -> None:
    found = _data(card(model()))
    assert found.library_name == "atoll"
    assert found.tags == ["federated-learning", "safetensors"]
    assert found.model_name == "digits"
    assert [(one.metric_type, one.metric_name, one.metric_value) for one in found.eval_results] == [
        ("accuracy", "eval/accuracy", 0.75)
    ]


def test_results_of_other_models_are_in_the_table_alone() -> None:
    text = card(model())
    assert "| server/accuracy | 0.25 | the server's evaluator | 1 |" in text
    assert "| eval/accuracy | 0.75 | participants, on data held out | 2 |" in text
    first = _data(card(model(round_number=1)))
    assert [one.metric_value for one in first.eval_results] == [0.2, 0.25]


def test_results_name_the_data_and_whether_it_was_a_simulation() -> None:
    (real,), (simulated,) = (_data(card(replace(model(), simulated=one))).eval_results for one in (False, True))
    assert real.dataset_name == "Data that stayed with the participants"
    assert simulated.dataset_name == "Data of simulated participants"


def test_what_was_measured_later_is_not_shown() -> None:
    assert "0.75" not in card(model(round_number=1))


def test_privacy_is_said_in_words_and_rounded_to_the_safe_side() -> None:
    text = card(model(ledger=LEDGER))
    assert "epsilon at most 1.235 at delta 1e-06" in text
    assert r"Protected is one participant with everything that it sent, under add\_remove adjacency" in text
    for line in (
        "| mechanism | gaussian |",
        "| noise multiplier | 2 |",
        "| accountant | prv |",
        "| unit | participant |",
    ):
        assert line in text
    assert "| all runs over the same participants | epsilon 3 at delta 1e-06 |" in text
    assert "differential-privacy" in _data(text).tags


def test_a_secret_draw_is_not_counted() -> None:
    """The bound of Poisson sampling holds only if nothing else depends on who was drawn."""
    fixed = replace(LEDGER, charges=tuple(replace(one, sampling="none") for one in LEDGER.charges))
    counts = "Each round averaged the updates of 3 participants"
    assert counts in card(model())
    assert counts in card(model(ledger=fixed))
    assert counts not in card(model(ledger=LEDGER))
    assert counts not in card(model(ledger=replace(LEDGER, charges=())))


def test_a_run_without_privacy_promises_nothing() -> None:
    assert "no central differential privacy" in card(model())


@pytest.mark.parametrize(
    "ledger",
    [
        replace(LEDGER, population=replace(POPULATION, flaw="the chain is broken")),
        replace(LEDGER, population=replace(POPULATION, runs=())),
    ],
)
def test_a_ledger_that_bounds_nothing_states_no_epsilon(ledger: object) -> None:
    text = card(model(ledger=ledger))  # type: ignore[arg-type]  # parametrised
    assert "no bound can be stated" in text
    assert "1.235" not in text


def test_statistics_with_noise_state_it() -> None:
    text = card(replace(model(), findings=Findings(4, 200, (), (), 8.4)))
    assert "200 ± 8.4 rows of 4 participants" in text
    assert "noise for differential privacy" in text


def test_statistics_of_the_data_are_a_table() -> None:
    age = NumericFindings("age", 200, 2, 2.0**-40, 50.5, 4.0, 2.0, (), (), ())
    findings = Findings(4, 200, (age,), (CategoryFindings("label", {"benign": 150, "malignant": None}, 0, 0),))
    text = card(replace(model(), findings=findings))
    assert "200 rows of 4 participants" in text
    assert "| age | 200 | 2 | 50.5 | 2 |" in text
    assert "| label | malignant | - |" in text
    assert "statistics.json" in text
    assert "## Data" not in card(model())


def test_hostile_text_stays_text() -> None:
    text = card(hostile())
    data = _data(text).to_dict()
    assert "license" not in data
    assert all(char.isprintable() or char == "\n" for char in text)
    _, front, body = text.split("---\n", 2)
    assert isinstance(yaml.safe_load(front), dict)
    parser = _markdown()
    page = parser.render(body)
    assert "<script" not in page
    assert "<a " not in page
    assert page.count("<h1>") == 1
    tables = [token for token in parser.parse(body) if token.type == "table_open"]
    assert len(tables) == 4, "tensors, settings, metrics, privacy: a bar in a cell opens no column and ends no table"


@pytest.mark.parametrize(
    "text", [HOSTILE, "a: b", "- x", "'", '"', "\\", "true", "é\U0001f600", "\x85", "{a: 1}", "*x"]
)
def test_a_quoted_text_is_one_scalar(text: str) -> None:
    found = yaml.safe_load(f"key: {quoted(text)}\nnext: 1\n")
    assert set(found) == {"key", "next"}
    assert isinstance(found["key"], str)


@pytest.mark.parametrize("value", [1e-05, -3e-07, 1e16, 0.25, 12, True])
def test_a_quoted_number_is_read_as_that_number(value: float) -> None:
    assert yaml.safe_load(f"key: {quoted(value)}") == {"key": value}


def test_a_small_metric_is_a_number_in_the_front_matter() -> None:
    rounds = (*DETAIL.rounds[:3], replace(DETAIL.rounds[3], metrics={"eval/loss": 1e-05}))
    assert [one.metric_value for one in _data(card(model(replace(DETAIL, rounds=rounds)))).eval_results] == [1e-05]


@pytest.mark.parametrize("text", [HOSTILE, "*bold*", "_x_", "a|b", "![x](y)"])
def test_plain_text_has_no_markup(text: str) -> None:
    tokens = _markdown().parseInline(f"x {plain(text)}")[0].children or []
    assert {token.type for token in tokens} == {"text"} or {token.type for token in tokens} == {"text", "text_special"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [("https://evil.org", r"https\://evil.org"), ("a@b.org", r"a\@b.org"), ("WWW.evil.org", r"WWW\.evil.org")],
)
def test_no_address_becomes_a_link(text: str, shown: str) -> None:
    """The extended autolinks of GFM 6.9 begin with a scheme and a colon, with www, or have an @."""
    assert plain(text) == shown


def test_a_card_of_a_job_that_this_version_cannot_read_is_written() -> None:
    text = card(model(replace(DETAIL, job_toml='[job]\nname = "x"\nunknown = 1\n')))
    assert "| job.unknown | 1 |" in text
