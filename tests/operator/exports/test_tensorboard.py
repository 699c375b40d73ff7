"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from atoll.operator import BadInputError
from atoll.operator.exports.sending import to_tensorboard
from atoll.operator.exports.tensorboard import folder_name
from atoll.operator.exports.tracked import Tracked, tracked
from tests.operator.exports.samples import DETAIL, ROUNDS, hostile

RUNNING = replace(DETAIL, run=replace(DETAIL.run, status="running", finished_at=None), rounds=ROUNDS[:2])


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def curve(events: EventAccumulator, tag: str) -> list[tuple[int, float, float]]:
    return [(event.step, round(event.value, 6), event.wall_time) for event in events.Scalars(tag)]


def test_curves_by_round_in_a_folder_of_the_run(tmp_path: Path) -> None:
    folder = to_tensorboard([tracked(DETAIL)], tmp_path)
    assert folder == tmp_path / "digits-rabcdefghijkl"
    events = read(folder)
    assert curve(events, "eval/accuracy") == [(0, 0.1, 105.0), (1, 0.2, 115.0), (2, 0.75, 125.0)]
    assert curve(events, "round/reported") == [(1, 3.0, 105.0), (2, 3.0, 115.0)]


def test_settings_and_the_end_are_hparams(tmp_path: Path) -> None:
    events = read(to_tensorboard([tracked(DETAIL)], tmp_path))
    contents = events.summary_metadata
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG].plugin_data.content)
    assert start.hparams["training.lr"].number_value == 0.1
    assert start.hparams["optimiser.name"].string_value == "fedavg"
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG].plugin_data.content)
    assert (end.status, end.end_time_secs) == (1, 130.0)


def test_a_run_that_is_followed_gets_each_point_once(tmp_path: Path) -> None:
    events = read(to_tensorboard(map(tracked, (RUNNING, RUNNING, DETAIL)), tmp_path))
    assert [step for step, _, _ in curve(events, "eval/accuracy")] == [0, 1, 2]


def test_a_run_that_is_written_again_replaces_its_points(tmp_path: Path) -> None:
    first = read(to_tensorboard([tracked(RUNNING)], tmp_path))
    again = to_tensorboard([tracked(DETAIL)], tmp_path)
    assert len(list(again.iterdir())) == 1
    assert [step for step, _, _ in curve(read(again), "train/loss")] == [1, 2]
    first.Reload()
    assert [step for step, _, _ in curve(first, "train/loss")] in ([1], [1, 2])


def test_files_of_others_stay(tmp_path: Path) -> None:
    folder = to_tensorboard([tracked(RUNNING)], tmp_path)
    (folder / "events.out.tfevents.1.mine").touch()
    to_tensorboard([tracked(DETAIL)], tmp_path)
    assert (folder / "events.out.tfevents.1.mine").exists()


def test_hostile_names_stay_below_the_folder(tmp_path: Path) -> None:
    evil = tracked(hostile().detail)
    named = replace(evil, name="../../etc", run="../rx")
    for run in (evil, named):
        assert to_tensorboard([run], tmp_path).parent == tmp_path
    assert folder_name(named) == "etc-___rx"
    assert folder_name(replace(evil, name="…")) == folder_name(replace(evil, name=""))


def test_it_needs_neither_torch_nor_tensorflow() -> None:
    probe = (
        "import sys; from atoll.operator.exports.tensorboard import _Protos; _Protos();"
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(BadInputError, match="logs/digits-rabcdefghijkl cannot be written: Not a directory"):
        to_tensorboard([tracked(DETAIL)], tmp_path / "logs")


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ImportError, match=r'TensorBoard needs \S+: pip install .*"\.\[tensorboard\]"'):
        to_tensorboard([tracked(DETAIL)], tmp_path)


def test_a_run_has_a_state(tmp_path: Path) -> None:
    nothing: list[Tracked] = []
    with pytest.raises(ValueError, match="at least one state"):
        to_tensorboard(nothing, tmp_path)
