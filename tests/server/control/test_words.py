from dataclasses import replace

import pytest

from atoll.server.control import RoundSummary
from atoll.server.control.words import duration, fragment_words, kind_words, round_label


def a_round(number: int, attempt: int = 0, kind: str = "train") -> RoundSummary:
    return RoundSummary(number, attempt, kind, "released", "", 1, 1, 1, 1, 1, None, None, None, {})


def test_labels_of_rounds() -> None:
    assert [round_label(a_round(6)), round_label(a_round(6, attempt=1))] == ["7", "7.2"]
    assert round_label(a_round(6, kind="evaluate")) == "e7"


def test_fragments_count_from_one_and_the_whole_model_is_not_spoken_of() -> None:
    part = replace(a_round(6), fragment=1, fragments=3)
    assert (kind_words(part), fragment_words(part)) == ("train 2/3", "fragment 2 of 3")
    assert (kind_words(a_round(6)), fragment_words(a_round(6))) == ("train", "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.34, "340 ms"), (4.2, "4.2 s"), (200, "3m 20s"), (7500, "2h 5m"), (59.99, "60 s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
