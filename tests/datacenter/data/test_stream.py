"""Streaming text: rows are a pure function of the step, for any assignment of lanes and any resumed position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data.batches import Batch, Batches
from atoll.datacenter.data.documents import Tokens
from atoll.datacenter.data.loader import Loader, largest_over
from atoll.datacenter.data.stream import TextStream
from atoll.datacenter.data.text import TextPieces, find_files
from atoll.datacenter.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from atoll.datacenter.errors import DataError
from tests.datacenter.data.texts import TEXT, text_folder, tokenizer_json
from tests.datacenter.ranks import run_ranks

SEQUENCE, ROWS, STEPS = 48, 5, 12


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("texts"))


class Counting(ByteTokenizer):
    """Counts the requests."""

    def __init__(self) -> None:
        self.seen = 0

    def encode(self, text: bytes) -> Tokens:
        self.seen += len(text)
        return super().encode(text)


def stream(texts: Path, *, packing: bool = True, seed: int = 3, tokenizer: Tokenizer | None = None) -> TextStream:
    pieces = TextPieces(find_files([texts]), piece_bytes=700)
    return TextStream(pieces, tokenizer or ByteTokenizer(), SEQUENCE, ROWS, seed, packing=packing)


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    return list(zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True))


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_any_world_that_is_stopped_and_goes_on_as_another_sees_what_one_process_sees(
    texts: Path, world: int, *, packing: bool
) -> None:
    def fresh() -> Batches:
        return Batches(stream(texts, packing=packing))

    undisturbed = [rows(step.share(0, 1)) for all_ in [fresh()] for _ in range(STEPS) for step in [all_.next_step()]]
    ranks = [fresh() for _ in range(world)]
    seen = [
        [row for rank, one in enumerate(ranks) for row in rows(one.next_step().share(rank, world))] for _ in range(7)
    ]
    marks = torch.stack([torch.from_numpy(one.source.bookmarks(7)) for one in ranks]).amax(0)
    state = json.loads(json.dumps(ranks[0].state(lambda _: marks)))
    other = [fresh() for _ in range(2)]
    for one in other:
        one.load(state)
    seen += [
        [row for rank, one in enumerate(other) for row in rows(one.next_step().share(rank, 2))]
        for _ in range(STEPS - 7)
    ]
    assert seen == undisturbed


def test_with_bookmarks_nothing_is_tokenised_again_and_without_them_only_the_lanes_that_are_needed(texts: Path) -> None:
    first = Batches(stream(texts))
    for _ in range(40):
        first.next_step().share(0, 1)
    state = first.state()
    expected = rows(first.next_step().share(1, 2))
    spent = {}
    for known in (True, False):
        tokenizer = Counting()
        again = Batches(stream(texts, tokenizer=tokenizer))
        again.load(state if known else {key: value for key, value in state.items() if key != "bookmarks"})
        assert rows(again.next_step().share(1, 2)) == expected
        spent[known] = tokenizer.seen
    assert spent[True] <= 2 * 2 * 1400
    assert 2 * 40 * SEQUENCE <= spent[False] <= 2 * 41 * SEQUENCE + 2 * 2 * 1400


@settings(max_examples=25, deadline=None)
@given(order=st.lists(st.integers(0, 90), min_size=1, max_size=8), packing=st.booleans())
def test_steps_in_any_order_are_the_same_rows(texts: Path, order: list[int], *, packing: bool) -> None:
    jumping = stream(texts, packing=packing)
    for step in order:
        np.testing.assert_array_equal(
            jumping.rows(step, 1, 4).inputs, stream(texts, packing=packing).rows(step, 1, 4).inputs
        )


def test_packed_lanes_lose_no_token_and_labels_stay_inside_documents(texts: Path) -> None:
    whole, marks = stream(texts), []
    for lane in range(ROWS):
        turns = [whole.encoded(lane, turn) for turn in range(4)]
        tokens = np.concatenate([turn.tokens for turn in turns])
        starts = np.concatenate([turn.starts + sum(t.tokens.size for t in turns[:at]) for at, turn in enumerate(turns)])
        count = (tokens.size - 1) // SEQUENCE
        found = [whole.rows(step, lane, lane + 1) for step in range(count)]
        inputs = np.concatenate([row.inputs[0] for row in found])
        labels = np.concatenate([row.labels[0] for row in found])
        np.testing.assert_array_equal(inputs, tokens[: inputs.size])
        expected = tokens[1 : inputs.size + 1].astype(np.int64)
        expected[[start - 1 for start in starts if 0 < start <= expected.size]] = -100
        np.testing.assert_array_equal(labels, expected)
        marks.append(int((labels == -100).sum()))
    assert min(marks) >= 2


def test_unpacked_rows_begin_documents_or_go_on_with_them(texts: Path) -> None:
    whole = stream(texts, packing=False)
    found = bytes(whole.rows(0, 0, 1).inputs[0].astype(np.uint8).tolist())
    first = bytes(whole.encoded(0, 0).tokens.tolist())
    assert first.startswith(found.rstrip(b"\0"))
    documents = whole.rows(3, 0, ROWS).documents
    assert documents is not None
    assert set(np.unique(documents)) <= {-1, 0}


def test_hugging_face_tokens_stream_too(texts: Path, tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(tokenizer_json(tmp_path))
    batch = Batches(stream(texts, tokenizer=tokenizer)).next_step().share(0, 1)
    assert batch.tokens.max() > 255
    assert batch.tokens.max() < tokenizer.vocab


def test_the_loader_keeps_bookmarks_of_what_was_handed_out_not_of_what_was_read_ahead(texts: Path) -> None:
    with Loader(Batches(stream(texts)), 0, 1, depth=4, agree=lambda found: found) as loader:
        for _ in range(3):
            loader.next()
        state = loader.state()
        following = rows(loader.next())
    tokenizer = Counting()
    with Loader(Batches(stream(texts, tokenizer=tokenizer)), 0, 1, depth=1) as again:
        again.load(state)
        assert rows(again.next()) == following


def rank_that_streams(texts: Path) -> dict[str, object]:
    """Three steps of a rank, and the state after them."""
    group = dist.group.WORLD
    assert group is not None
    agree = largest_over(group, torch.device("cpu"))
    with Loader(Batches(stream(texts)), dist.get_rank(), dist.get_world_size(), agree=agree) as loader:
        for _ in range(3):
            loader.next()
        return dict(loader.state())


def test_ranks_agree_on_where_all_lanes_are(texts: Path) -> None:
    alone = Batches(stream(texts))
    for _ in range(3):
        alone.next_step().share(0, 1)
    states = run_ranks(rank_that_streams, 2, texts)
    assert [state["bookmarks"] for state in states] == [alone.state()["bookmarks"]] * 2


@pytest.mark.parametrize("bookmarks", ["1,2", "1,2,3,4,x", "-2,0,0,0,0", "9" * 30 + ",0,0,0,0"])
def test_damaged_bookmarks_are_refused(texts: Path, bookmarks: str) -> None:
    found = Batches(stream(texts))
    with pytest.raises(DataError, match="the checkpoint is damaged"):
        found.load({**found.state(), "bookmarks": bookmarks})


def test_too_little_text_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text(TEXT)
    with pytest.raises(DataError, match=rf"{len(TEXT)} bytes of text are too few for one global batch of 5 \* 48"):
        stream(path)


@pytest.mark.parametrize(("packing", "text"), [(True, ""), (False, ""), (False, "x")])
def test_text_without_anything_to_predict_is_refused(tmp_path: Path, text: str, *, packing: bool) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n" + "\n" * 1300)
    with pytest.raises(DataError, match="no document of the 2 pieces of text has two tokens"):
        stream(path, packing=packing).rows(0, 0, 1)
