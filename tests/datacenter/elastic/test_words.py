"""Messages about ranks that fail or do not arrive, and refusals before any process starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.datacenter.checks.start import check_devices
from atoll.datacenter.cli.train import train
from atoll.datacenter.elastic.blame import Beat, explain
from atoll.datacenter.elastic.ending import status_of, translated
from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.elastic.failures import Failure, cause, is_final, is_repeated
from atoll.datacenter.elastic.launch import parse_nodes
from atoll.datacenter.elastic.recorder import Collective, read
from atoll.datacenter.errors import DataError, HungError, LayoutError, LostPeerError
from atoll.datacenter.job import SiloJob
from tests.datacenter.elastic.launched import write_job
from tests.datacenter.training import small

WAITED = Collective("gloo:all_reduce", "0 (default_pg)", 57, "Float [3]", 600.0)


def beat(rank: int, number: int = 9, **more: object) -> Beat:
    known = {"host": "h", "pid": 100 + rank, "step": 12, "phase": "training", "phase_s": 30.0} | more
    return Beat(rank=rank, number=number, **known)  # type: ignore[arg-type]  # what the tests give has the right types


def test_a_rank_that_does_not_answer_is_named() -> None:
    mine = beat(0, waiting=WAITED)
    before = [beat(0), beat(1), beat(2)]
    after = [beat(0, 12), beat(1, 12, waiting=WAITED, begun={WAITED.group: 57}), beat(2, step=11)]
    said = explain(mine, before, after, 600.0)
    assert "gloo:all_reduce number 57 of group 0 (default_pg), Float [3] did not end within 600 s" in said
    assert "rank 2 (h, pid 102) does not answer" in said
    assert "rank 1" not in said


def test_a_rank_that_is_late_is_named_with_what_it_does() -> None:
    mine = beat(0, waiting=WAITED)
    before = [beat(rank) for rank in range(4)]
    after = [
        beat(0, 12),
        beat(1, 12, phase="data", phase_s=35.2),
        beat(2, 12, begun={WAITED.group: 56}),
        beat(3, 12, waiting=WAITED, begun={WAITED.group: 57}),
    ]
    said = explain(mine, before, after, 600.0)
    assert "rank 1 (h, pid 101) has not arrived: step 12, data for 35 s" in said
    assert "rank 2 (h, pid 102) has not arrived" in said
    assert "rank 3" not in said


def test_when_everybody_is_there_the_network_is_to_blame() -> None:
    after = [beat(rank, 12, waiting=WAITED, begun={WAITED.group: 57}) for rank in range(2)]
    assert "look at the network" in explain(beat(0, waiting=WAITED), [beat(0), beat(1)], after, 5.0)


def test_a_beat_comes_back_from_the_store_as_it_went() -> None:
    sent = beat(3, waiting=WAITED, begun={"0": 5})
    assert Beat.decoded(sent.encoded()) == sent
    assert Beat.decoded(beat(3).encoded()) == beat(3)


def test_the_recorder_gives_the_oldest_collective_that_has_not_ended() -> None:
    def entry(sequence: int, *, retired: bool) -> dict[str, object]:
        return {
            "collective_seq_id": sequence,
            "is_p2p": False,
            "retired": retired,
            "profiling_name": "gloo:all_gather",
            "process_group": ["7", "tp"],
            "input_dtypes": ["Float"],
            "input_sizes": [[2, 4]],
            "time_created_ns": sequence * 10**9,
        }

    dump = json.dumps({"entries": [entry(1, retired=True), entry(2, retired=False), entry(3, retired=False)]})
    found = read(dump.encode(), now_ns=10 * 10**9)
    assert found.waiting == Collective("gloo:all_gather", "7 (tp)", 2, "Float [2, 4]", 8.0)
    assert found.begun == {"7 (tp)": 3}
    assert read(b"", 0).waiting is None


def test_errors_of_collectives_get_a_meaning() -> None:
    lost = translated(RuntimeError("[pair.cc:547] Connection closed by peer [::1]:5"), lambda: "")
    late = translated(RuntimeError("Timed out waiting 8000ms for recv operation to complete"), lambda: "rank 1")
    other = RuntimeError("shapes differ")
    assert isinstance(lost, LostPeerError)
    assert isinstance(late, HungError)
    assert str(late) == "rank 1"
    assert translated(other, lambda: "") is other
    wanted = {
        LostPeerError(""): Exit.LOST_PEER,
        HungError(""): Exit.HUNG,
        DataError(""): Exit.FINAL,
        other: Exit.FAILED,
    }
    assert {error: status_of(error) for error in wanted} == wanted


def failure(rank: int, status: int, message: str = "", trace: str = "", *, first: bool = True) -> Failure:
    return Failure(rank, 100 + rank, status, message, trace, first)


def test_the_cause_is_neither_a_lost_connection_nor_what_the_agent_ended() -> None:
    lost, killed = failure(0, Exit.LOST_PEER, "LostPeerError: gone"), failure(2, -9)
    ended = failure(1, -15, first=False)
    assert cause([lost, ended, killed]) is killed
    assert str(killed) == "rank 2 (pid 102) was ended by signal 9 (SIGKILL)"
    assert str(lost) == "rank 0: gone"
    assert str(failure(1, Exit.FAILED, "ValueError: no", "Traceback …\nValueError: no\n")).endswith("ValueError: no")
    assert cause([lost]) is lost
    assert is_final([lost, failure(1, Exit.FINAL, "DataError: none")])
    assert not is_final([lost, killed])


@pytest.mark.parametrize(
    ("text", "min_world", "wanted"),
    [("1", None, (1, 1)), ("4", None, (4, 4)), ("2:4", None, (2, 4)), ("4", 9, (2, 4)), ("2:4", 16, (2, 4))],
)
def test_nodes(text: str, min_world: int | None, wanted: tuple[int, int]) -> None:
    assert parse_nodes(text, 8, min_world) == wanted


@pytest.mark.parametrize(
    ("text", "min_world", "words"),
    [
        ("many", None, "allowed are a number of nodes"),
        ("0", None, "1 <= MIN <= MAX"),
        ("4:2", None, "1 <= MIN <= MAX"),
        ("1:4", 16, "faults.min_world = 16 needs 2 nodes of 8"),
        ("2", 24, "faults.min_world = 24 needs 3 nodes of 8"),
    ],
)
def test_nodes_that_are_refused(text: str, min_world: int | None, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        parse_nodes(text, 8, min_world)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (("seed = 7", "seed = -7"), (), "seed"),
        (("[optimiser]", "[optimizer]"), (), "optimizer"),
        (("global_batch = 12", "global_batch = 10"), ("--nproc", "2"), "batch.global_batch = 10 is not a multiple"),
        (("[data_parallel]", "[mesh]\ntp = 3\n[data_parallel]"), ("--nproc", "3"), "mesh.tp = 3 does not divide"),
        (("layers = 2", 'layers = 2\nkind = "nowhere:spec"'), (), "cannot be imported"),
        (("seed = 7", "seed = 7"), ("--nnodes", "2"), "needs --meet"),
        (('folder = "kept"', 'folder = "job.toml"'), (), "job.toml cannot be written: File exists"),
    ],
)
def test_a_bad_job_is_refused_before_a_process_starts(
    tmp_path: Path, change: tuple[str, str], options: tuple[str, ...], words: str
) -> None:
    job = write_job(tmp_path)
    job.write_text(("[optimiser]\nlr = 1e-3\n" + job.read_text(encoding="utf-8")).replace(*change), encoding="utf-8")
    done = CliRunner().invoke(train, [str(job), *options])
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "logs").exists()


def test_what_the_gpus_of_this_machine_lack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    floats = SiloJob.model_validate(small(precision={"compute": "float8"}))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check_devices(SiloJob.model_validate(small()), 3)
    with pytest.raises(LayoutError, match='"float8" needs a GPU'):
        check_devices(floats, 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(LayoutError, match="--nproc 3: this machine has 2 GPUs"):
        check_devices(SiloJob.model_validate(small()), 3)
    check_devices(SiloJob.model_validate(small()), 2)


def failed(trace: str) -> Failure:
    return Failure(rank=1, pid=7, status=Exit.FAILED, message="", trace=trace, first=True)


@pytest.mark.parametrize(
    ("before", "now", "repeated"),
    [
        pytest.param(None, "KeyError: 'a'\nin step 3", False, id="first"),
        pytest.param("KeyError: 'a'\nin step 3", "KeyError: 'a'\nin step 3", True, id="same"),
        pytest.param("KeyError: 'a'\nin step 3", "KeyError: 'a'\nin step 9", False, id="later"),
        pytest.param("<f at 0x7f01> fails", "<f at 0x55ee> fails", True, id="address"),
        pytest.param("", "", False, id="killed"),
    ],
)
def test_an_error_that_comes_again_in_the_same_step_is_repeated(before: str | None, now: str, repeated: bool) -> None:
    assert is_repeated(failed(now), None if before is None else failed(before)) == repeated
