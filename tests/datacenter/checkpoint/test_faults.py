"""Faults of checkpoints: damage, other models, full disks, interrupted writers."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from atoll.datacenter.checkpoint import storage, writer
from atoll.datacenter.checkpoint.compare import check_model
from atoll.datacenter.checkpoint.files import Entry, Written, write_tensors
from atoll.datacenter.checkpoint.folder import step_folder, steps_in
from atoll.datacenter.errors import CheckpointError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.models import spec_of
from tests.datacenter.checkpoint.going_on import Run, go_on, sections_of
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def raised(error: type[Exception], sections: dict[str, Any], folder: str) -> str:
    """Return the message of a resume that must fail."""
    with join_world(WAIT_S) as world:
        run = Run.start(SiloJob.model_validate(sections), folder, world)
        with pytest.raises(error) as caught:
            run.checkpoints.resume(run.state)
        return str(caught.value)


def damaged_then_whole(folder: str) -> None:
    """Damage the newest checkpoint in every way; each time the previous one is used, until none is left."""
    kept = Path(folder) / "kept"
    for damage, file, words in (
        (flip_bit, "rank-00000.safetensors", "bits have changed"),
        (cut_short, "rank-00000.safetensors", "truncated"),
        (flip_bit, "manifest.json", "damaged"),
        (Path.unlink, "rank-00000.safetensors", "No such file"),
    ):
        newest = steps_in(kept)[-1]
        broken = step_folder(kept, newest) / file
        damage(broken)
        if len(steps_in(kept)) > 1:
            found = go_on(sections_of(), folder, newest - 2)
            assert found["resumed"] == newest - 2
            assert (kept / f"step-{newest:011d}.damaged").is_dir()
        else:
            said = raised(CheckpointError, sections_of(), folder)
            assert "none of the 1 checkpoints" in said
            assert str(broken) in said
            assert words in said


def keep_four(folder: str) -> None:
    go_on(sections_of(checkpoint={"keep": 4}), folder, 10)


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_taken(tmp_path: Path) -> None:
    """A flipped bit, a truncated file, a damaged manifest, a missing file; if none is intact, the job refuses."""
    run_ranks(keep_four, 1, str(tmp_path))
    assert steps_in(tmp_path / "kept") == [4, 6, 8, 10]
    run_ranks(damaged_then_whole, 1, str(tmp_path))


def test_another_model_is_refused_by_name_and_shape_before_training_and_before_any_process(tmp_path: Path) -> None:
    run_ranks(go_on, 2, sections_of(), str(tmp_path), 2)
    other = sections_of(model={"ffn_dim": 96, "layers": 3}, optimiser={"name": "sgd", "betas": (0.9, 0.95)})
    del other["optimiser"]["betas"]
    for said in run_ranks(raised, 2, CheckpointError, other, str(tmp_path)):
        assert "model.blocks.0.feed_forward.w1.weight has shape [64, 32] in the checkpoint, [96, 32] in the job" in said
        assert "more" in said
    deeper, same = (SiloJob.model_validate(sections_of(model={"layers": layers})).model for layers in (3, 2))
    with pytest.raises(CheckpointError, match=r"blocks\.2\.attention.* is not in the checkpoint"):
        check_model(tmp_path / "kept", spec_of(deeper))
    assert check_model(tmp_path / "kept", spec_of(same)) == 2
    assert check_model(tmp_path / "none", spec_of(deeper)) is None


def full_disk(folder: str) -> dict[str, Any]:
    """Limit rank 1's files to a few bytes, for a while."""
    with join_world(WAIT_S) as world:
        run = Run.start(SiloJob.model_validate(sections_of(checkpoint={"keep": 1})), folder, world)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if world.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        run.until(2)
        with pytest.raises(CheckpointError) as caught:
            run.checkpoints.save(2, run.state)
        run.until(4)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        run.checkpoints.save(4, run.state)
        if world.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        run.until(10)  # the checkpoints of steps 6, 8 and 10 fail
        with pytest.raises(CheckpointError, match="3 in a row"):
            run.checkpoints.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return {"said": str(caught.value)}


def test_a_checkpoint_that_cannot_be_written_is_reported_on_every_rank(tmp_path: Path) -> None:
    """Training continues after a failed checkpoint; three in a row end it. Existing ones remain."""
    for found in run_ranks(full_disk, 2, str(tmp_path)):
        assert "the checkpoint of step 2 cannot be written" in found["said"]
        assert "rank 1: OSError: [Errno 27] File too large" in found["said"]
    assert steps_in(tmp_path / "kept") == [4]
    assert run_ranks(go_on, 1, sections_of(), str(tmp_path), 4)[0]["resumed"] == 4


def while_it_is_written(folder: str) -> None:
    """The writing thread is delayed while training continues; the checkpoint holds the state of its step."""
    released = threading.Event()

    def slow(path: Path, entries: list[Entry]) -> Written:
        assert released.wait(WAIT_S)
        return write_tensors(path, entries)

    with patch.object(storage, "write_tensors", slow), join_world(WAIT_S) as world:
        run = Run.start(SiloJob.model_validate(sections_of()), folder, world)
        run.until(2)
        wanted = {name: value.detach().clone() for name, value in run.state.model_tensors().items()}
        run.until(3)
        assert steps_in(Path(folder) / "kept") == []
        assert any(not torch.equal(wanted[name], value) for name, value in run.state.model_tensors().items())
        released.set()
        run.checkpoints.close()
        again = Run.start(SiloJob.model_validate(sections_of()), folder, world)
        assert again.checkpoints.resume(again.state) == 2
        assert all(torch.equal(wanted[name], value) for name, value in again.state.model_tensors().items())
        dist.barrier()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    run_ranks(while_it_is_written, 1, str(tmp_path))


class OnceOnly(DefaultStager):
    """Copies one state, as the stagers of torch 2.11 and 2.12 do."""

    _used_up = False

    def stage(self, *given: Any, **named: Any) -> Any:
        if self._used_up:
            raise KeyError("closed")
        self._used_up = True
        return super().stage(*given, **named)


def with_stagers_that_copy_once(folder: str) -> list[int]:
    once = partial(OnceOnly, StagingOptions(*[False] * 4))
    with patch.object(writer, "STAGERS_LAST", new=False), patch.object(writer, "_stager", once):
        go_on(sections_of(), folder, 6)
    return steps_in(Path(folder) / "kept")


def test_stagers_that_copy_once_write_more_than_one_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(with_stagers_that_copy_once, 1, str(tmp_path)) == [[4, 6]]


def cut_off(folder: str) -> None:
    """Leftovers of a writer that was killed."""
    left = Path(folder) / "kept" / "writing-00000000004"
    shutil.copytree(step_folder(Path(folder) / "kept", 2), left)
    assert go_on(sections_of(), folder, 4)["resumed"] == 2
    assert not left.exists()


def test_what_a_killed_writer_left_is_no_checkpoint_and_goes_away(tmp_path: Path) -> None:
    run_ranks(go_on, 1, sections_of(), str(tmp_path), 2)
    run_ranks(cut_off, 1, str(tmp_path))
    assert steps_in(tmp_path / "kept") == [2, 4]
