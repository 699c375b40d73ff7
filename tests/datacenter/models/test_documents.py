"""Document masks: a document has the same logits as alone, by either kernel and in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.data.batches import Step
from atoll.datacenter.data.opening import open_job_batches
from atoll.datacenter.errors import DataError, LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.documents import attend, block_mask, document_mask
from atoll.datacenter.models.llama import Llama
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_trainer import JOB, records, run
from tests.datacenter.training import method

LENGTHS = (5, 1, 9)
"""Documents of a row of 16 tokens; the last token is padding."""
SIZES = {"vocab": 64, "layers": 2, "dim": 32, "heads": 4, "kv_heads": 2}


def row() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, documents and positions of a row."""
    tokens = torch.randint(64, (1, 16), generator=torch.Generator().manual_seed(2))
    documents = torch.tensor([[number for number, length in enumerate(LENGTHS) for _ in range(length)] + [-1]])
    positions = torch.tensor([[place for length in LENGTHS for place in range(length)] + [0]])
    return tokens, documents, positions


def model(**changes: Any) -> Llama:
    torch.manual_seed(1)
    module = Llama(ModelSection.model_validate(SIZES | changes))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def test_logits_of_a_document_are_those_that_it_has_alone() -> None:
    module, (tokens, documents, positions) = model(), row()
    with torch.no_grad():
        packed = module(tokens, documents=documents, positions=positions)
        for piece, alone in zip(*(torch.split(whole, [*LENGTHS, 1], 1) for whole in (packed, tokens)), strict=True):
            torch.testing.assert_close(piece, module(alone), rtol=0, atol=2e-6)
        assert (packed - module(tokens)).abs().max() > 0.1, "without masks they see each other"


def test_one_document_is_plain_attention() -> None:
    module, (tokens, documents, _) = model(), row()
    with torch.no_grad():
        one = module(tokens, documents=torch.zeros_like(documents), positions=torch.arange(16)[None])
        torch.testing.assert_close(one, module(tokens), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_kernel_of_a_gpu_computes_what_the_mask_says(kv_heads: int) -> None:
    """FlexAttention without its compiler, on the CPU, where it has no backward pass."""
    _, documents, _ = row()
    documents = documents.repeat(2, 1)
    documents[1] = 0
    generator = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(2, heads, 16, 8, generator=generator) for heads in (4, kv_heads, kv_heads))
    plain = attend(query, key, value, document_mask(documents))
    torch.testing.assert_close(attend(query, key, value, block_mask(documents)), plain, rtol=0, atol=1e-6)


def masked(**sections: dict[str, Any]) -> dict[str, Any]:
    """A job over a text of short documents, evaluated on the same text."""
    found = {
        **JOB,
        "job": {"name": "masked", "steps": 3, "seed": 3},
        "model": {"layers": 2, "dim": 32, "heads": 2},
        "data": {"source": "text", "path": "text.jsonl", "document_masks": True},
        "batch": JOB["batch"] | {"micro_batch": 2},
        "evaluation": {"every_steps": 3, "path": "text.jsonl", "sequences": 4},
    }
    return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in sections.items()}}


def write_text(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    words = [" ".join(f"{number * place % 97}" for place in range(number % 7 + 1)) for number in range(1, 400)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in words))


def losses(folder: Path) -> list[float]:
    """Losses of the records, then of the evaluations."""
    lines = records(folder)
    held_out = [line["evaluation"]["loss"] for line in lines if "evaluation" in line]
    return [line["loss"] for line in lines if "evaluation" not in line] + held_out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("alone")
    write_text(folder)
    run_ranks(run, 1, str(folder), masked(), -1)
    return losses(folder)


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(1, {"memory": {"checkpointing": "full"}, "batch": {"micro_batch": 1}}, id="recomputed"),
        pytest.param(1, {"memory": {"compile": True}}, id="compiled", marks=pytest.mark.every_layout),
        pytest.param(2, {"data_parallel": method("ddp")}, id="ddp-2"),
        pytest.param(2, {"data_parallel": method("zero3")}, id="zero3-2", marks=pytest.mark.every_layout),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
        pytest.param(2, {"mesh": {"cp": 2}}, id="ulysses-2"),
        pytest.param(2, {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b"}}, id="1f1b-2"),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "tp": 2}, "pipeline": {"schedule": "gpipe"}},
            id="gpipe-2-tp-2",
            marks=pytest.mark.every_layout,
        ),
    ],
)
def test_every_layout_finds_the_losses_of_one_process(
    ranks: int, sections: dict[str, Any], alone: list[float], tmp_path: Path
) -> None:
    write_text(tmp_path)
    run_ranks(run, ranks, str(tmp_path), masked(**sections), -1)
    assert losses(tmp_path) == pytest.approx(alone, abs=1e-5)


def test_the_masks_change_what_is_learned(alone: list[float], tmp_path: Path) -> None:
    write_text(tmp_path)
    run_ranks(run, 1, str(tmp_path), masked(data={"document_masks": False}), -1)
    assert losses(tmp_path) != pytest.approx(alone, abs=1e-4)


def test_rows_of_a_text_have_several_documents(tmp_path: Path) -> None:
    write_text(tmp_path)
    batch = Step(0, open_job_batches(SiloJob.model_validate(masked()), tmp_path).source).share(0, 1)
    assert batch.documents is not None
    assert int(batch.documents.max()) >= 2


@pytest.mark.parametrize(
    ("ranks", "sections", "said"),
    [
        (2, {"mesh": {"cp": 2}, "context_parallel": {"method": "ring"}}, 'method = "ring" has no masks'),
        (1, {"privacy": {"noise_multiplier": 1.0}}, r"document_masks = true with \[privacy\]"),
        (1, {"model": {"kind": "vision"}}, 'a model of kind "vision" takes no documents'),
    ],
)
def test_what_has_no_place_for_masks_is_refused(ranks: int, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        check_layout(SiloJob.model_validate(masked(**sections)), ranks)


def test_data_without_documents_is_refused(tmp_path: Path) -> None:
    sections = {**masked(), "data": {"source": "tests.datacenter.models.test_documents:plain", "document_masks": True}}
    with pytest.raises(DataError, match=r"rows\(\) returned no documents and positions"):
        open_job_batches(SiloJob.model_validate(sections), tmp_path)


def plain(_settings: object, sequence: int, _split: str) -> Any:
    """``data.source``: pairs of tokens and labels."""
    return [(list(range(sequence)), list(range(sequence)))] * 8


def test_the_spec_says_which_models_take_documents() -> None:
    assert spec_of(ModelSection.model_validate(SIZES)).documents
    assert spec_of(ModelSection.model_validate(SIZES | {"lora": {}})).documents
