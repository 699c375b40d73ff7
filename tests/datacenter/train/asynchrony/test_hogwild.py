"""Hogwild over real processes and real shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from atoll.datacenter.train.asynchrony.hogwild import shared_parameters
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.asynchrony.working import hogwild
from tests.datacenter.training import ALL_STEPS, small, train

SGD: dict[str, dict[str, Any]] = {
    "optimiser": {"name": "sgd", "lr": 0.5, "max_grad_norm": None},
    "asynchrony": {"method": "hogwild"},
}


def test_alone_it_is_what_one_process_does() -> None:
    alone = run_ranks(train, 1, small(optimiser=SGD["optimiser"]), ALL_STEPS)[0]
    found = run_ranks(hogwild, 1, SGD)[0]
    for name, value in found["parameters"].items():
        torch.testing.assert_close(value, alone["parameters"][name], rtol=0, atol=2e-6)


def test_all_ranks_end_with_the_same_parameters_that_have_learned() -> None:
    """Results depend on chance, so none are compared exactly. The loss falls about as far as in one process."""
    start = run_ranks(train, 1, small(), 0)[0]["parameters"]
    alone = run_ranks(train, 1, small(optimiser=SGD["optimiser"]), ALL_STEPS)[0]["parameters"]
    first, second = (one["parameters"] for one in run_ranks(hogwild, 2, SGD))
    for name, value in first.items():
        assert torch.equal(value, second[name])
    way, wanted = (torch.cat([(one[name] - start[name]).flatten() for name in start]) for one in (first, alone))
    assert torch.nn.functional.cosine_similarity(way, wanted, dim=0) > 0.85
    assert 0.8 < float(way.norm() / wanted.norm()) < 1.2


def shared(folder: str) -> dict[str, object]:
    """Each rank changes its own element; return the names of files left behind in the folder."""
    module = nn.Linear(3, 1)
    with torch.no_grad():
        module.weight.fill_(float(dist.get_rank()))
    place = patch("atoll.datacenter.train.asynchrony.hogwild._MEMORY", Path(folder))
    with place, shared_parameters(list(module.parameters())) as vector:
        begun = module.weight.detach().clone()
        dist.barrier()
        with torch.no_grad():
            module.weight[0, dist.get_rank()] = 10.0 + dist.get_rank()
        dist.barrier()
        left = [str(path) for path in Path(folder).iterdir()]
        return {"begun": begun, "seen": module.weight.detach().clone(), "vector": vector[:3].clone(), "left": left}


def test_what_one_rank_writes_the_others_read(tmp_path: Path) -> None:
    found = run_ranks(shared, 3, str(tmp_path))
    for one in found:
        assert one["begun"].tolist() == [[0.0, 0.0, 0.0]]
        assert one["seen"].tolist() == [[10.0, 11.0, 12.0]]
        assert one["vector"].tolist() == [10.0, 11.0, 12.0]
        assert one["left"] == []
