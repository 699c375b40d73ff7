"""The loss in chunks of tokens beside the loss of whole logits: values, gradients, bits, layouts and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob, loss_chunks
from atoll.datacenter.job.parallel import SPLIT_BACKWARD
from atoll.datacenter.models.compiled import compiled
from atoll.datacenter.models.llama_spec import token_loss
from atoll.datacenter.parallel.cross_entropy import chunked_cross_entropy
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same, assert_same_together, method, small, small_in_two, train

SCALE = 1 / 37
CHUNK = 5
"""Divides no number of tokens here, so that the last chunk is shorter."""
every_layout = pytest.mark.every_layout
CHUNKED: dict[str, Any] = {"memory": {"loss_chunk_tokens": CHUNK}}


def inputs(dtype: torch.dtype = torch.float32, tokens: int = 12, classes: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    """Two sequences of hidden states, an output matrix, and labels of which some do not count."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, tokens, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(classes, 16, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(classes, (2, tokens), generator=generator)
    labels[0, :3] = -100
    return hidden, weight, labels


def results(loss: Tensor, *of: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, of)]


def chunked(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int = CHUNK, scale: float = SCALE) -> list[Tensor]:
    return results(chunked_cross_entropy(hidden, weight, labels, scale=scale, chunk=chunk), hidden, weight)


@pytest.mark.parametrize("chunk", [1, CHUNK, 24, 1000])
def test_loss_and_gradients_equal_those_of_whole_logits(chunk: int) -> None:
    hidden, weight, labels = inputs()
    wanted = results(token_loss(functional.linear(hidden, weight), labels) * SCALE, hidden, weight)
    torch.testing.assert_close(chunked(hidden, weight, labels, chunk), wanted, rtol=1e-6, atol=1e-7)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile with this backend; ``aot_eager`` generates no code, which takes half a minute of processor time."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=every_layout)], indirect=True)
@pytest.mark.parametrize("scale", [SCALE, torch.tensor(SCALE)], ids=["number", "tensor"])
def test_compiled_they_are_the_same(scale: float | Tensor) -> None:
    hidden, weight, labels = inputs()
    loss = chunked_cross_entropy(hidden, weight, labels, scale=scale, chunk=CHUNK, compiles=True)
    wanted = chunked(hidden, weight, labels)
    torch.testing.assert_close(results(loss, hidden, weight), wanted, rtol=1e-6, atol=1e-7)


def test_the_same_inputs_give_the_same_bits() -> None:
    first, again = (chunked(*inputs(torch.bfloat16)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_labels_that_all_do_not_count_leave_no_gradient() -> None:
    hidden, weight, labels = inputs()
    assert all(not found.any() for found in chunked(hidden, weight, torch.full_like(labels, -100)))


@pytest.mark.parametrize("label", [-1, 50])
def test_a_label_that_is_no_class_is_an_error_as_with_whole_logits(label: int) -> None:
    hidden, weight, labels = inputs()
    labels[1, 4] = label
    with pytest.raises(IndexError):
        token_loss(functional.linear(hidden, weight), labels)
    with pytest.raises((IndexError, RuntimeError), match=f"index {label} is out of bounds"):
        chunked(hidden, weight, labels)


def divided(label: int) -> Tensor:
    """The loss of one rank's half of the classes, with one of the labels."""
    hidden, weight, labels = inputs()
    labels[1, 4] = label
    mine = weight.detach().chunk(2)[dist.get_rank()].contiguous()
    return chunked_cross_entropy(hidden, mine, labels, scale=SCALE, chunk=CHUNK, classes=dist.group.WORLD).detach()


def test_divided_classes_have_no_finite_loss_for_a_label_that_is_none_of_them() -> None:
    hidden, weight, labels = inputs()
    labels[1, 4] = 3
    whole = token_loss(functional.linear(hidden, weight), labels).detach() * SCALE
    for found in run_ranks(divided, 2, 3):
        torch.testing.assert_close(found, whole)
    assert all(found.isnan() for found in run_ranks(divided, 2, 50))


def test_large_logits_overflow_no_exponential() -> None:
    hidden, weight, labels = inputs()
    with torch.no_grad():
        hidden *= 1000
    wanted = results(token_loss(functional.linear(hidden, weight), labels) * SCALE, hidden, weight)
    torch.testing.assert_close(chunked(hidden, weight, labels), wanted, rtol=1e-5, atol=1e-6)


def test_a_loss_scale_keeps_small_gradients_from_becoming_zero_in_float16() -> None:
    hidden, weight, labels = inputs(torch.float16)
    small_ones = chunked(hidden, weight, labels, scale=1e-9)[1]
    scaled = chunked(hidden, weight, labels, scale=1e-9 * 2**16)[1]
    assert not small_ones.any()
    assert scaled.any()


def test_a_frozen_matrix_gets_no_gradient() -> None:
    hidden, weight, labels = inputs()
    weight = weight.detach()
    loss = chunked_cross_entropy(hidden, weight, labels, scale=SCALE, chunk=CHUNK)
    wanted = results(token_loss(functional.linear(hidden, weight), labels) * SCALE, hidden)
    torch.testing.assert_close(results(loss, hidden), wanted, rtol=1e-6, atol=1e-7)


def test_peak_memory_is_that_of_a_chunk() -> None:
    """512 tokens of 20,000 classes: 41 MB in float32, of which the plain loss holds at least three at once."""
    hidden, weight, labels = inputs(tokens=256, classes=20_000)
    logits = 4 * labels.numel() * 20_000
    plain = peak_bytes(lambda: token_loss(functional.linear(hidden, weight), labels).backward())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    ours = peak_bytes(
        lambda: chunked_cross_entropy(hidden, weight, labels, scale=SCALE, chunk=32).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    )
    assert plain >= 3 * logits
    chunk_and_gradients = logits * 32 / labels.numel() + 2 * 4 * (weight.numel() + hidden.numel())
    assert ours <= 1.5 * chunk_and_gradients
    assert ours < plain / 8


def peak_bytes(run: Any) -> int:
    """Return the largest sum of bytes that PyTorch's allocator had handed out while this ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    results: Any = found.profiler
    held = peak = 0
    for event in sorted(results.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """One process with whole logits."""
    found: dict[str, Any] = run_ranks(train, 1, small_in_two(1))[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(1, {}, id="one"),
        pytest.param(2, {}, id="ddp-2"),
        pytest.param(2, {"data_parallel": method("zero1")}, id="zero1-2", marks=every_layout),
        pytest.param(2, {"data_parallel": method("zero3")}, id="zero3-2"),
        pytest.param(
            2, {"data_parallel": {"method": "zero3", "cpu_offload": True}}, id="zero3-offload-2", marks=every_layout
        ),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=every_layout),  # the tied embedding is cut like that
        pytest.param(2, {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False}}, id="tp-2-whole-sequences"),
        pytest.param(4, {"mesh": {"tp": 2}, "data_parallel": method("zero3")}, id="zero3-2-tp-2", marks=every_layout),
        pytest.param(2, {"mesh": {"cp": 2}}, id="cp-2"),
    ],
)
def test_layouts_equal_one_process_with_whole_logits(
    ranks: int, sections: dict[str, Any], whole: dict[str, Any]
) -> None:
    for one in run_ranks(train, ranks, small_in_two(ranks, **sections, **CHUNKED)):
        assert_same(one, whole)


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"mesh": {"pp": 2}}, id="1f1b"),
        pytest.param(
            2,
            {"model": {"layers": 4}, "mesh": {"pp": 2}, "pipeline": {"schedule": "zbv", "stages_per_rank": 2}},
            id="zbv: two backward passes of a stage",
            marks=needs_torch_2_13,
        ),
        pytest.param(4, {"mesh": {"pp": 2, "tp": 2}}, id="1f1b-tp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"pp": 2}, "data_parallel": method("zero2")}, id="1f1b-zero2-2", marks=every_layout),
    ],
)
def test_pipelines_equal_one_process_with_whole_logits(ranks: int, sections: dict[str, Any]) -> None:
    (wanted,) = run_ranks(train, 1, small(model=sections.get("model", {})))
    assert_same_together(run_ranks(train, ranks, small(**sections, **CHUNKED)), wanted)


def test_adapters_leave_the_output_matrix_frozen() -> None:
    sections: dict[str, Any] = {"model": {"lora": {"rank": 2}}}
    (wanted,) = run_ranks(train, 1, small_in_two(1, **sections))
    for one in run_ranks(train, 2, small_in_two(2, **sections, **CHUNKED, data_parallel=method("zero3"))):
        assert_same(one, wanted)


def test_a_tied_embedding_adds_up_both_gradients() -> None:
    sections: dict[str, Any] = {"model": {"tied_embeddings": True}}
    (wanted,) = run_ranks(train, 1, small_in_two(1, **sections))
    for one in run_ranks(train, 2, small_in_two(2, **sections, **CHUNKED, mesh={"tp": 2})):
        assert_same(one, wanted)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"mesh": {"tp": 2}, "tensor_parallel": {"loss": False}}, "tensor_parallel.loss = true"),
        ({"privacy": {"noise_multiplier": 1.0}}, "[privacy]"),
        (
            {"model": {"kind": "vision"}, "data": {"source": "digits"}},
            "names no head",
        ),
    ],
)
def test_chunks_that_cannot_be_had_are_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(LayoutError) as refused:
        check_layout(SiloJob.model_validate({"job": {"name": "a", "steps": 1}, "model": {}, **sections, **CHUNKED}), 2)
    (problem,) = [one for one in refused.value.problems if "loss_chunk_tokens" in one]
    assert problem.startswith(f"memory.loss_chunk_tokens = {CHUNK}")
    assert reason in problem


def test_with_an_older_torch_a_backward_pass_in_two_has_whole_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default gives way; a job that asks for chunks is refused."""
    assert {name for name, kind in KINDS.items() if kind.splits_backward} == SPLIT_BACKWARD
    job: dict[str, Any] = {"job": {"name": "a", "steps": 1}, "model": {}, "batch": {"micro_batch": 1}}
    job |= {"mesh": {"pp": 2}, "pipeline": {"schedule": "zbv"}}
    chunk = partial(loss_chunks.loss_chunk_tokens, SiloJob.model_validate(job), micro_batch=64, cp=1, tp=1, head=True)
    monkeypatch.setattr(loss_chunks, "SPLITS_CHUNKS", True)
    assert chunk() == loss_chunks.DEFAULT_CHUNK_TOKENS
    monkeypatch.setattr(loss_chunks, "SPLITS_CHUNKS", False)
    assert chunk() is None
    with pytest.raises(LayoutError, match=r"chunks allow from torch 2\.13 on"):
        check_layout(SiloJob.model_validate(job | CHUNKED), 2)
    job["pipeline"] = {"schedule": "1f1b"}
    assert loss_chunks.why_whole(SiloJob.model_validate(job), tp=1, head=True) is None
