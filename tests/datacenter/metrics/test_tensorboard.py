"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll.datacenter.errors import MissingExtraError
from atoll.datacenter.metrics.tensorboard import TensorBoard, curves
from tests.datacenter.metrics.records import EVALUATION, FACTS, RECORD, record


def test_curves_can_be_read_back(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path / "board", FACTS)
    for step in (1, 2):
        sink.step(record(step=step, loss=4.0 - step))
    sink.evaluated(EVALUATION)
    sink.close()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {*curves(RECORD, FACTS), "held_out/loss", "held_out/perplexity"}
    assert [(event.step, event.value) for event in events.Scalars("held_out/loss")] == [(7, 2.0)]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 3.0), (2, 2.0)]
    assert events.Scalars("speed/tokens_per_s")[0].value == 4096.0


def test_what_is_not_known_has_no_curve() -> None:
    assert "train/grad_norm" not in curves(record(grad_norm=None), FACTS)
    assert "speed/bubble_share" in curves(record(bubble_share=0.0), FACTS)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r'metrics.tensorboard needs tensorboard: pip install .*"\.\[tens'):
        TensorBoard(tmp_path, FACTS)
