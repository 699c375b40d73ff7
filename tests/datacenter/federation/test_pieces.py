"""Pieces of the global model that ranks hold and send, in each layout: every element once, and the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation import pieces as module
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.federation.match import layout_of
from atoll.datacenter.federation.pieces import pieces_of
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.build import make_passes
from atoll.formats.safetensors import read_header
from atoll.wire.chunks import ElementRange, check_coverage
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small
from tests.patience import WAIT_S

MOE = {"layers": 2, "moe": {"experts": 4, "expert_dim": 32}}
ZERO3 = {"method": "zero3"}
Ranges = list[list[int]]


def job(**sections: dict[str, Any]) -> dict[str, Any]:
    return small(**{**sections, "model": {"layers": 2, **sections.get("model", {})}})


def hold(sections: dict[str, Any], split: int) -> dict[str, Any]:
    """Return a rank's pieces: what it holds and which part it sends, as ranges and values."""
    module.SPLIT_ELEMENTS = split
    made = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        spec = spec_of(made.model)
        meshes = Meshes.build(ParallelDims.of(made.mesh, world.size), world.device.type)
        passes = make_passes(made, spec, meshes, world.device)
        tensors = {
            name: value
            for part in passes.parts
            for name, value in get_model_state_dict(part).items()
            if isinstance(value, Tensor)
        }
        found = pieces_of(tensors, layout_of(spec), world.device)
        return {
            "held": [(listed(piece.ranges), piece.local.reshape(-1).clone()) for piece in found],
            "sent": [
                (listed(piece.sent_ranges), piece.local.reshape(-1)[slice(*piece.sends)].clone()) for piece in found
            ],
        }


def listed(ranges: tuple[ElementRange, ...]) -> Ranges:
    return [[one.offset, one.block, one.stride, one.count] for one in ranges]


def places(ranges: Ranges) -> npt.NDArray[np.int64]:
    """Return the elements that ranges name, in order."""
    spans = [
        np.add.outer(first + stride * np.arange(count), np.arange(block)) for first, block, stride, count in ranges
    ]
    return np.concatenate([span.reshape(-1) for span in spans]) if spans else np.empty(0, np.int64)


def initial_of(sections: dict[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    """Return the model that a federation starts from, flat: weights depend only on seed and name."""
    path = folder / "initial.safetensors"
    write_initial(SiloJob.model_validate(sections), path)
    return np.frombuffer(path.read_bytes(), np.float32, offset=read_header(path)[1])


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        pytest.param(2, {"data_parallel": ZERO3}, id="zero3-2"),
        pytest.param(3, {"data_parallel": ZERO3, "model": {"vocab": 67}}, id="zero3-3-uneven"),
        pytest.param(4, {"data_parallel": ZERO3, "mesh": {"dp_replicate": 2}}, id="hybrid-2x2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
        pytest.param(4, {"data_parallel": ZERO3, "mesh": {"tp": 2}, "model": {"vocab": 66}}, id="zero3-2-tp-2"),
        pytest.param(2, {"mesh": {"pp": 2}}, id="pp-2"),
        pytest.param(2, {"mesh": {"ep": 2}, "data_parallel": ZERO3, "model": MOE}, id="ep-2"),
        pytest.param(2, {"mesh": {"tp": 2}, "model": {"lora": {"rank": 4}}}, id="lora-tp-2"),
        pytest.param(2, {"data_parallel": ZERO3, "model": {"tied_embeddings": True}}, id="tied-zero3-2"),
        pytest.param(2, {"mesh": {"tp": 2}, "model": {"tied_embeddings": True}}, id="tied-tp-2"),
    ],
)
def test_ranks_hold_the_right_elements_and_send_each_once(ranks: int, sections: dict[str, Any], tmp_path: Path) -> None:
    flat = initial_of(job(**sections), tmp_path)
    found = run_ranks(hold, ranks, job(**sections), 32)
    check_coverage([ElementRange(*one) for rank in found for ranges, _ in rank["sent"] for one in ranges], flat.size)
    for rank in found:
        for ranges, values in rank["held"] + rank["sent"]:
            np.testing.assert_array_equal(values.numpy(), flat[places(ranges)])
    senders = [sum(values.numel() for _, values in rank["sent"]) for rank in found]
    assert min(senders) > 0.7 * flat.size / ranks, "ranks that hold the same share the sending"


def holding(names: list[list[str]]) -> str:
    """Return pieces of two tensors; each rank holds the ones assigned to it."""
    with join_world(WAIT_S) as world:
        layout = Layout((TensorSpec("a", (3, 2), Dtype.FLOAT32), TensorSpec("b", (5,), Dtype.FLOAT32)))
        shapes = {"a": (3, 2), "b": (5,)}
        tensors = {name: nn.Parameter(torch.zeros(shapes[name])) for name in names[world.rank]}
        try:
            found = pieces_of(tensors, layout, world.device)
        except LayoutError as error:
            return str(error)
        return " ".join(piece.span.spec.name for piece in found if piece.sends != (0, 0))


def test_what_several_ranks_hold_is_sent_by_one_and_what_none_holds_is_missed() -> None:
    assert run_ranks(holding, 2, [["a", "b"], ["b"]]) == ["a b", ""]
    assert run_ranks(holding, 2, [["a"], ["b"]]) == ["a", "b"]
    assert run_ranks(holding, 2, [["a"], ["a"]]) == ["the ranks together hold 6 elements of a model of 11"] * 2
