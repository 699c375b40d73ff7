from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from atoll.wire.errors import WireError
from atoll.wire.privacy_terms import (
    PrivacyAdjacency,
    PrivacyMechanism,
    PrivacySampling,
    PrivacyTerms,
    terms_from_proto,
    terms_to_proto,
)
from atoll.wire.v1 import participation_pb2

TERMS = PrivacyTerms(
    mechanism=PrivacyMechanism.GAUSSIAN,
    noise_multiplier=1.1,
    clip_norm=0.5,
    epsilon=8.0,
    delta=1e-5,
    adjacency=PrivacyAdjacency.ADD_REMOVE,
    sampling=PrivacySampling.POISSON,
    sample_rate=0.1,
    population="digits",
)


@pytest.mark.parametrize(
    ("mechanism", "adjacency", "sampling"), list(product(PrivacyMechanism, PrivacyAdjacency, PrivacySampling))
)
def test_terms_come_back_from_the_wire_as_they_went(
    mechanism: PrivacyMechanism, adjacency: PrivacyAdjacency, sampling: PrivacySampling
) -> None:
    terms = replace(TERMS, mechanism=mechanism, adjacency=adjacency, sampling=sampling)
    data = terms_to_proto(terms).SerializeToString()
    assert terms_from_proto(participation_pb2.PrivacyTerms.FromString(data)) == terms


def test_noise_that_is_off_is_an_epsilon_without_end() -> None:
    off = replace(TERMS, noise_multiplier=0.0, epsilon=math.inf)
    assert terms_from_proto(terms_to_proto(off)).epsilon == math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("clip_norm", 0.0),
        ("clip_norm", math.nan),
        ("clip_norm", math.inf),
        ("epsilon", -1e-9),
        ("epsilon", math.nan),
        ("delta", 1.0),
        ("delta", math.nan),
        ("sample_rate", 0.0),
        ("sample_rate", 1.5),
        ("population", "p" * 257),
    ],
)
def test_values_that_cannot_be_are_named(name: str, value: object) -> None:
    fields: dict[str, Any] = asdict(TERMS) | {name: value}
    with pytest.raises(WireError, match=f"privacy.{name} "):
        PrivacyTerms(**fields)


@pytest.mark.parametrize("name", ["mechanism", "adjacency", "sampling", "unit"])
@pytest.mark.parametrize("number", [0, 99])
def test_a_promise_of_an_unknown_kind_is_no_promise(name: str, number: int) -> None:
    message = terms_to_proto(TERMS)
    setattr(message, name, number)
    with pytest.raises(WireError, match=f"privacy.{name} is {number}.*upgrade"):
        terms_from_proto(message)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(WireError, match="mechanism"):
        terms_from_proto(participation_pb2.PrivacyTerms())
