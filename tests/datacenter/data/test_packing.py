"""Documents in sequences: labels, documents and positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data.documents import Documents, in_memory
from atoll.datacenter.data.packing import IGNORED, NO_DOCUMENT, Packed, Padded, Rows

SMALL = settings(max_examples=60, deadline=None)
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def documents_of(lengths: list[int]) -> Documents:
    """Every token differs: 1, 2, 3 ..."""
    ends = np.cumsum(lengths)
    return in_memory(
        [np.arange(end - n + 1, end + 1, dtype=np.uint16) for end, n in zip(ends, lengths, strict=True)],
        1 << 16,
        "numbers",
    )


def owners(lengths: list[int]) -> list[int]:
    """Return the document of each token; padding has none."""
    return [NO_DOCUMENT, *np.repeat(np.arange(len(lengths)), lengths).tolist()]


def check_rows(rows: Rows, owner: list[int]) -> set[int]:
    """Check what holds for any row, and return the predicted tokens."""
    assert rows.documents is not None
    assert rows.positions is not None
    predicted: list[int] = []
    for tokens, labels, documents, positions in zip(
        rows.inputs.tolist(), rows.labels.tolist(), rows.documents.tolist(), rows.positions.tolist(), strict=True
    ):
        for at, (token, label) in enumerate(zip(tokens, labels, strict=True)):
            if label != IGNORED:
                assert label == token + 1
                assert owner[label] == owner[token]
                predicted.append(label)
            assert (documents[at] == NO_DOCUMENT) == (token == 0)
            if at and token:
                together = owner[token] == owner[tokens[at - 1]]
                assert (documents[at] == documents[at - 1]) == together
                assert positions[at] == (positions[at - 1] + 1 if together else 0)
        assert positions[0] == 0
    assert len(predicted) == len(set(predicted))
    return set(predicted)


def to_predict(lengths: list[int]) -> set[int]:
    """Every token but the first of each document."""
    owner = owners(lengths)
    return {token for token in range(2, len(owner)) if owner[token] == owner[token - 1]}


@SMALL
@given(lengths=LENGTHS, sequence=st.integers(1, 9))
def test_packed_every_token_but_the_first_of_a_document_is_predicted_once(lengths: list[int], sequence: int) -> None:
    packed = Packed(documents_of(lengths), sequence)
    rows = packed.rows(np.arange(len(packed)))
    assert check_rows(rows, owners(lengths)) == to_predict(lengths)
    total = sum(lengths)
    assert rows.inputs[rows.inputs > 0].tolist()[: total - 1] == list(range(1, total))[: total - 1]


@SMALL
@given(lengths=LENGTHS, sequence=st.integers(1, 9))
def test_padded_the_same_with_one_document_in_each_row(lengths: list[int], sequence: int) -> None:
    padded = Padded(documents_of(lengths), sequence)
    rows = padded.rows(np.arange(len(padded)))
    owner = owners(lengths)
    assert check_rows(rows, owner) == to_predict(lengths)
    assert all(len({owner[token] for token in row if token}) == 1 for row in rows.inputs.tolist())
    assert len(padded) == sum(-(-(n - 1) // sequence) for n in lengths if n > 1)


@SMALL
@given(lengths=LENGTHS.filter(lambda found: sum(found) > 1), order=st.lists(st.integers(0, 1 << 30), max_size=9))
def test_sequences_can_be_taken_in_any_order(lengths: list[int], order: list[int]) -> None:
    packed = Packed(documents_of(lengths), 4)
    indices = np.asarray([index % len(packed) for index in order], np.int64)
    np.testing.assert_array_equal(packed.rows(indices).labels, packed.rows(np.arange(len(packed))).labels[indices])
