"""``atoll silo plan`` as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from transformers import LlamaConfig

from atoll.datacenter.cli import silo
from atoll.datacenter.errors import LayoutError

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "silo" / "llama-8b.toml")


def run(*options: str) -> str:
    """Return the output; raises the command's errors."""
    done = CliRunner().invoke(silo, ["plan", *options], catch_exceptions=False, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_tables_say_what_fits_and_why() -> None:
    printed = run(EXAMPLE, "--gpus", "8", "--top", "3", "--fix", "tp=1", "--fix", "cp=1")
    assert "llama-8b on 8 x NVIDIA H100 SXM 80 GB" in printed
    assert "dp_shard 8, zero1" in printed
    for part in ("states", "activations", "context (assumed)", "of 75.6 GiB"):
        assert part in printed
    assert "gradients of blocks" in printed


def test_json_has_the_same_and_more() -> None:
    found = json.loads(run(EXAMPLE, "--gpus", "8", "--as-written", "--json", "--explain", "memory"))
    (layout,) = found["layouts"]
    assert layout["fits"]
    assert layout["layout"]["dp_shard"] == 8
    assert layout["memory_bytes"] - 1.5 * 2**30 == pytest.approx(sum(layout["memory_parts"].values()), abs=10)
    assert layout["step_s"] == pytest.approx(sum(layout["step_parts_s"].values()))
    assert layout["tokens_per_s_per_rank"] == pytest.approx(8192 / layout["step_s"])
    assert {"kind", "axis", "bytes", "calls", "ranks", "nodes"} <= layout["collectives"][0].keys()
    assert found["formulas"][0].startswith("memory of the fullest rank = memory + context = ")


@pytest.mark.parametrize("what", ["step", "mfu", "bubble", "collectives"])
def test_every_number_says_its_formula(what: str) -> None:
    printed = run(EXAMPLE, "--gpus", "8", "--fix", "pp=2", "--explain", what)
    formulas = printed.partition(f"Formulas: {what}\n")[2].splitlines()
    assert len(formulas) > 8
    assert all(" = " in line for line in formulas)


def with_muon(folder: Path, more: str = "") -> str:
    job = folder / "job.toml"
    text = Path(EXAMPLE).read_text(encoding="utf-8") + '\n[optimiser]\nname = "muon"\n' + more
    job.write_text(text, encoding="utf-8")
    return str(job)


def test_muon_is_part_of_the_update_and_of_the_collectives(tmp_path: Path) -> None:
    printed = run(with_muon(tmp_path), "--gpus", "8", "--fix", "method=zero1", "--fix", "tp=1", "--explain", "step")
    assert "Muon's updates of w1, w3, w2" in printed
    assert "matrices that Muon orthogonalises = " in printed


def test_muon_is_refused_where_training_refuses_it(tmp_path: Path) -> None:
    job = with_muon(tmp_path, "[model.moe]\nexperts = 4\nexpert_dim = 64\n")
    for more in ((), ("--as-written",)):
        with pytest.raises(LayoutError, match=r'"muon" with \[model.moe\]: experts are stacked'):
            run(job, "--gpus", "8", *more)


def test_a_layout_that_does_not_fit_is_shown_as_written(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    small = Path(EXAMPLE).read_text(encoding="utf-8").replace("global_batch = 8", "global_batch = 1")
    job.write_text(small, encoding="utf-8")
    assert "This does not fit." in run(str(job), "--gpus", "1", "--as-written", "--gpu", "a100")


@pytest.mark.parametrize("wrong", ["tp", "tp=two", "color=red", "method="])
def test_what_can_be_fixed_is_named(wrong: str) -> None:
    with pytest.raises(click.BadParameter, match=r"allowed are pp, .* and method, checkpointing, schedule"):
        run(EXAMPLE, "--gpus", "8", "--fix", wrong)


def test_sizes_are_those_of_the_checkpoint_or_are_written_until_it_is_there(tmp_path: Path) -> None:
    job, options = tmp_path / "job.toml", ("--gpus", "2", "--fix", "pp=1")
    bare = '[job]\nname = "m"\nsteps = 1\n[batch]\nglobal_batch = 8\n[model]\nweights = "m"\n'
    job.write_text(bare)
    with pytest.raises(LayoutError, match="write the sizes"):
        run(str(job), *options)
    job.write_text(f"{bare}layers = 4\n")
    assert "m on 2 x" in run(str(job), *options)
    LlamaConfig(vocab_size=512, hidden_size=128, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "m")
    with pytest.raises(LayoutError, match=r"model\.layers = 4, but .* says 32"):
        run(str(job), *options)
    job.write_text(bare)
    assert "m on 2 x" in run(str(job), *options)


def test_what_privacy_adds_is_said_not_to_be_counted(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = '[job]\nname = "m"\nsteps = 1\n[model]\nlayers = 2\n'
    said = "not counted: time and memory that [privacy] adds"
    job.write_text(text)
    assert said not in run(str(job), "--gpus", "2")
    job.write_text(f"{text}[privacy]\nnoise_multiplier = 1.0\n")
    assert said in run(str(job), "--gpus", "2")
    assert said in run(str(job), "--gpus", "2", "--as-written")


def test_nothing_fits() -> None:
    with pytest.raises(LayoutError, match=r"none of .* layouts fits"):
        run(EXAMPLE, "--gpus", "1")
