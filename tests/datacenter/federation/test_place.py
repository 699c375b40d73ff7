"""A silo's place in the federation goes through a checkpoint."""

from __future__ import annotations

import json

from atoll.client import RoundKey
from atoll.datacenter.federation.place import Place


def test_it_comes_back_as_it_was() -> None:
    place, other = Place(), Place()
    place.begin(RoundKey("run", 3, 1), 1500, 96_000)
    other.load(json.loads(json.dumps(place.state())))
    assert other == place
    assert other.key == RoundKey("run", 3, 1)


def test_before_the_first_round_it_is_in_none() -> None:
    assert Place().key == RoundKey("", 0, 0)
