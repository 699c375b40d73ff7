from pathlib import Path

from benchmarks.baselines import Plain, Streams, Writes, plain, write_and_fsync


def test_files_are_written_whole_and_removed(tmp_path: Path) -> None:
    found = write_and_fsync(5 << 20, 2, tmp_path, repeats=1)
    assert min(found.new_s, found.over_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_plain_round_is_streams_and_writes() -> None:
    found = plain(1 << 20, 2, repeats=1)
    assert found.round_s == found.streams.total_s + found.writes.new_s
    assert found.over_s == found.streams.total_s + found.writes.over_s


def test_what_was_measured_twice_is_averaged() -> None:
    first, second = Plain(Streams(1, 2, 3), Writes(4, 5)), Plain(Streams(3, 4, 5), Writes(6, 7))
    assert Plain.mean([first, second]) == Plain(Streams(2, 3, 4), Writes(5, 6))
