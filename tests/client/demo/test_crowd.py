from __future__ import annotations

from pathlib import Path

from atoll.client.demo.crowd import read_tokens


def test_tokens_go_by_the_number_of_their_shard(tmp_path: Path) -> None:
    listed = tmp_path / "tokens"
    listed.write_text("0 atoll-join-a\n12 atoll-join-b\n")
    assert read_tokens(listed) == {"0": "atoll-join-a", "12": "atoll-join-b"}
