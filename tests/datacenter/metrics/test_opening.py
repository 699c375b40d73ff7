"""Sinks opened from a job file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from atoll.datacenter.job.operation import MetricsSection
from atoll.datacenter.metrics.opening import MetricsFileError, open_sinks
from atoll.datacenter.metrics.prometheus import MetricsPortError
from tests.datacenter.metrics.records import FACTS, RECORD
from tests.ports import free_ports


def test_rank_0_opens_what_the_job_asks_for_relative_to_its_file(tmp_path: Path) -> None:
    section = MetricsSection(json_lines="a.jsonl", tensorboard="board")
    with open_sinks(section, FACTS, tmp_path, rank=0, console=False) as sinks:
        sinks.step(RECORD)
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])["step"] == 7
    assert len(list((tmp_path / "board").iterdir())) == 1


def test_other_ranks_open_nothing(tmp_path: Path) -> None:
    with open_sinks(MetricsSection(json_lines="a.jsonl"), FACTS, tmp_path, rank=1) as sinks:
        sinks.step(RECORD)
    assert list(tmp_path.iterdir()) == []


def test_what_was_opened_is_closed_if_the_rest_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    section = MetricsSection(port=free_ports(), json_lines="file/a.jsonl")
    for _ in range(2):  # the second finds the port free again
        with pytest.raises(MetricsFileError, match=r"metrics.json_lines = .*file/a.jsonl cannot be written"):
            open_sinks(section, FACTS, tmp_path, rank=0, console=False)


def test_a_port_that_is_taken_ends_it_before_training(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        section = MetricsSection(port=taken.getsockname()[1])
        with pytest.raises(MetricsPortError, match="cannot listen"):
            open_sinks(section, FACTS, tmp_path, rank=0)
