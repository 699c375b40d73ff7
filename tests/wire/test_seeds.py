"""Seeds of tasks are what docs/protocol.md says, worked out here from the page's words."""

from __future__ import annotations

import pytest
from blake3 import blake3

from atoll.wire.seeds import task_seed
from tests.vectors.files import stored


@pytest.mark.parametrize("case", stored("seed.json")["cases"])
def test_the_vectors_follow_from_the_page(case: dict[str, str]) -> None:
    named = int(case["job_seed"]).to_bytes(8, "little") + int(case["round"]).to_bytes(4, "little")
    hashed = blake3(
        named + case["participant"].encode(), derive_key_context="atoll 2026 task seed: job seed, round, participant"
    )
    assert int.from_bytes(hashed.digest(8), "little") >> 1 == int(case["seed"])
    assert task_seed(int(case["job_seed"]), int(case["round"]), case["participant"]) == int(case["seed"])


def test_seeds_differ_by_job_round_and_participant() -> None:
    found = {task_seed(seed, number, name) for seed in range(8) for number in range(8) for name in ("p1", "p2", "")}
    assert len(found) == 8 * 8 * 3
    assert max(found) < 2**63


@pytest.mark.parametrize(("seed", "number"), [(-1, 0), (2**63, 0), (0, -1), (0, 2**32)])
def test_what_is_out_of_range_is_refused(seed: int, number: int) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        task_seed(seed, number, "p1")
