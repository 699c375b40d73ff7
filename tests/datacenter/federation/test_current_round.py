"""A silo's round in the federation goes through a checkpoint."""

from __future__ import annotations

import json

from atoll.client import RoundKey
from atoll.datacenter.federation.current_round import CurrentRound


def test_a_round_survives_json() -> None:
    current, other = CurrentRound(), CurrentRound()
    current.begin(RoundKey("run", 3, 1), 1500, 96_000)
    other.load(json.loads(json.dumps(current.state())))
    assert other == current
    assert other.key == RoundKey("run", 3, 1)


def test_before_the_first_round_it_is_in_none() -> None:
    assert CurrentRound().key == RoundKey("", 0, 0)
