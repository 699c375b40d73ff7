"""The engine plays the golden transcripts; see ``transcript`` for how to read and rewrite them."""

from pathlib import Path
from typing import get_args

import pytest

from atoll.server.rounds.effects import Effect
from tests.server.rounds.transcript import paths, play


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_the_engine_gives_the_output_that_the_transcript_shows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert play(text) == text, "if the change is meant: python -m tests.server.rounds.transcript --rewrite"


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_transcript_begins_with_what_it_shows(path: Path) -> None:
    first = path.read_text(encoding="utf-8").split("\npolicy ")[0].splitlines()
    assert all(line.startswith("# ") for line in first)
    assert " ".join(line.removeprefix("# ") for line in first).count(". ") >= 1
    assert first[-1].endswith(".")


def test_the_transcripts_show_every_effect() -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in paths())
    assert [kind.__name__ for kind in get_args(Effect) if f"  {kind.__name__} " not in shown] == []


def test_output_that_was_edited_is_found() -> None:
    text = paths()[0].read_text(encoding="utf-8")
    assert play(text.replace("  DrawCohort ", "  DrawNobody ")) == text
